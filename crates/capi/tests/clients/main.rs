//! The C interface as programs in C, Python and Go use it, all of them linked with the library that packages install.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

mod c;
mod fio;
mod go;
mod header;
mod installed;
mod page;
mod python;
#[path = "../../../cowhand/tests/all/store.rs"]
mod store;
