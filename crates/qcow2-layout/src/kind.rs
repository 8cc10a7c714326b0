//! What an error means for control flow.

/// What kind of failure a decoding or encoding error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The bytes contradict the format: the image is damaged, or not an image.
    Corrupt,
    /// Valid, but asks for something that is not implemented here.
    Unsupported,
    /// There is no memory for what the bytes describe.
    NoMemory,
    /// A value that the caller wants to write is outside what the format can hold.
    Invalid,
}
