//! All tests of the door in one program: it is linked once.

mod beside_another_door;
mod clients_that_are_gone;
mod clients_that_misbehave;
mod peers;
mod support;
mod tls;
mod transmission;
