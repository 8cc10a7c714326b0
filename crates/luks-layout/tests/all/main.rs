//! Headers against the programs that made them, and against whoever made them wrong.

mod hostile;
mod peers;
