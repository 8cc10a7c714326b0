//! What commands of the terminal and of the control socket have in common: failures and what is written, options of images that
//! are made and changed, what an image and a lineage say of themselves.

#![forbid(unsafe_code)]
// They panic when the output is closed: a server must outlive its terminal.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod amend;
pub mod create;
pub mod failure;
pub mod info;
pub mod lineages;
pub mod medium;
pub mod numbers;
pub mod option_list;
pub mod output;
pub mod voice;
