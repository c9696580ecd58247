"""Vector mathematics of generated C: functions without branches, which compilers vectorise."""
