//! qcow2-layout
