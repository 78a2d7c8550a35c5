"""What each command does: a file a command, and what they share.  Only `cli` comes in here."""
