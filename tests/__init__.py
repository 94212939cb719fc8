"""The tests, a package so that support modules can be imported from everywhere."""
