"""Authentication, authorization, redaction and TLS."""
