//! The found packet filter as a value: decoded from the kernel's bytes, asked, and changed by a plan. No I/O.
#![forbid(unsafe_code)]
