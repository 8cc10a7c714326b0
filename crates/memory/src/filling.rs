//! A buffer that several operations fill, one after the other.

use crate::IoBuf;

/// Filled from the front, piece by piece: an operation takes each piece and gives it back. No copy, unless an operation gives other bytes back.
#[derive(Debug)]
pub struct Filling {
    done: Option<IoBuf>,
    rest: IoBuf,
}

impl Filling {
    /// Nothing of `buf` is filled yet.
    pub fn new(buf: IoBuf) -> Self {
        Self { done: None, rest: buf }
    }

    /// Bytes that are not filled yet.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Whether all pieces were taken.
    pub fn is_full(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next `len` bytes out; they come back by [`Filling::give`] before the next ones are taken.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn take(&mut self, len: usize) -> IoBuf {
        self.rest.split_to(len)
    }

    /// Puts the piece that was taken last behind those before it, filled or not.
    pub fn give(&mut self, piece: IoBuf) {
        match &mut self.done {
            Some(done) => done.rejoin(piece),
            None => self.done = Some(piece),
        }
    }

    /// The whole buffer, whatever of it is filled.
    pub fn end(self) -> IoBuf {
        match self.done {
            Some(mut done) => {
                done.rejoin(self.rest);
                done
            }
            None => self.rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_in_their_order_and_nothing_is_copied() {
        let buf = IoBuf::copy_from(b"abcdef");
        let start = buf.as_ptr();
        let mut filling = Filling::new(buf);
        for (len, byte) in [(2, b'1'), (3, b'2')] {
            let mut piece = filling.take(len);
            piece.fill(byte);
            filling.give(piece);
        }
        assert_eq!((filling.left(), filling.is_full()), (1, false));
        let buf = filling.end();
        assert_eq!((&buf[..], buf.as_ptr()), (&b"11222f"[..], start));
    }

    #[test]
    fn an_operation_may_give_other_bytes_back() {
        let mut filling = Filling::new(IoBuf::copy_from(b"abc"));
        drop(filling.take(1));
        filling.give(IoBuf::copy_from(b"X"));
        assert_eq!(&filling.end()[..], b"Xbc");
        assert_eq!(&Filling::new(IoBuf::copy_from(b"abc")).end()[..], b"abc");
    }
}
