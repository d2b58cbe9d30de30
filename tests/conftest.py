"""This folder is on the path of every test below it, for the helpers that lie in it."""
