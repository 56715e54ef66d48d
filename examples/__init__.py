"""Programs that show what sbp2p is for; each is run by a test in a short form."""
