"""The tests, a package so that fixtures import by one name from everywhere."""
