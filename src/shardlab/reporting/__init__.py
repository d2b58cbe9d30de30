"""One offline HTML page from a folder of results: sentences, tables and pictures, every one read off the rows."""
