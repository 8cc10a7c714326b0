//! All tests of what doors share in one program: it is linked once.

mod doors_on_one_pool;
mod names;
mod support;
