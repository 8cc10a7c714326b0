//! All tests of the storage contract and its drivers in one program: it is linked once.

mod contract;
mod device;
mod direct;
mod length;
mod locks;
mod medium;
