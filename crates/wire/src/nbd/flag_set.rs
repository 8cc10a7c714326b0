//! Sets of 16 flags as they are on the wire.

/// Makes a type of a flag set: its flags, and what every such set can do.
macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u16);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*

            /// What the bits on the wire say; unknown ones are kept.
            pub fn from_wire(bits: u16) -> Self {
                Self(bits)
            }

            /// The bits on the wire.
            pub fn to_wire(self) -> u16 {
                self.0
            }

            /// Whether all of `other` are set.
            pub fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// `self`, and `other` if `condition` holds.
            #[must_use]
            pub fn and_if(self, condition: bool, other: Self) -> Self {
                if condition { self | other } else { self }
            }

            /// The flags in `self` that are not in `other`.
            #[must_use]
            pub fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether there are none.
            pub fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}

pub(crate) use flag_set;
