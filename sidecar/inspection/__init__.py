"""One execution as log and store hold it: told in lines, as JSON, drawn."""
