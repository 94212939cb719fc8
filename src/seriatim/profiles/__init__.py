"""The log in the vocabularies people know: thin facades with each one's names and rules."""
