"""One log, validated, decided and committed: what every door and profile stands on."""
