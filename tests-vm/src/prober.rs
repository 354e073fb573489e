//! A client outside the machine that counts failures.
