//! The formats of this crate, by their names.

/// A format of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VirtualBox's.
    Vdi,
    /// Virtual PC's and Hyper-V's older one (VHD).
    Vpc,
    /// VMware's.
    Vmdk,
    /// QEMU's first copy-on-write format, version 1.
    Qcow,
    /// Hyper-V's newer one.
    Vhdx,
}

impl Kind {
    /// QEMU's name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vdi => "vdi",
            Self::Vpc => "vpc",
            Self::Vmdk => "vmdk",
            Self::Qcow => "qcow",
            Self::Vhdx => "vhdx",
        }
    }

    /// The format of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        [
            Self::Vdi, //
            Self::Vpc,
            Self::Vmdk,
            Self::Qcow,
            Self::Vhdx,
        ]
        .into_iter()
        .find(|kind| kind.name() == name)
    }
}
