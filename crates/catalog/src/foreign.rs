//! `vdi`, `vpc`, `qcow`, `vmdk`, `vhdx`: images of other hypervisors, which are only read.

use std::sync::Arc;

use block::{Blame, Block};
use formats::{Kind, VDI_SIGNATURE, VDI_SIGNATURE_OFFSET, VPC_COOKIE, qcow1, vhdx, vmdk};

use graph::drivers::{FormatDriver, FormatHeader};
use graph::drivers::{Opening, OpeningFuture};

pub(super) const VDI: FormatDriver = FormatDriver {
    name: "vdi",
    title: "a vdi image",
    header: Some(FormatHeader {
        name: "vdi",
        begins: |start| {
            start.get(VDI_SIGNATURE_OFFSET..).is_some_and(|rest| rest.starts_with(&VDI_SIGNATURE))
        },
        required: true,
    }),
    options: &[],
    open: |opening| open(Kind::Vdi, opening),
};

pub(super) const VPC: FormatDriver = FormatDriver {
    name: "vpc",
    title: "a vpc image",
    // A fixed disk has its footer at the end only, so it is not recognised, and opened where its format is given.
    header: Some(FormatHeader {
        name: "vpc",
        begins: |start| start.starts_with(VPC_COOKIE),
        required: false,
    }),
    options: &[],
    open: |opening| open(Kind::Vpc, opening),
};

pub(super) const VMDK: FormatDriver = FormatDriver {
    name: "vmdk",
    title: "a vmdk image",
    header: Some(FormatHeader { name: "vmdk", begins: vmdk::begins, required: false }),
    options: &[],
    open: |opening| open(Kind::Vmdk, opening),
};

pub(super) const QCOW: FormatDriver = FormatDriver {
    name: "qcow",
    title: "a qcow image of version 1",
    header: Some(FormatHeader { name: "qcow", begins: qcow1::begins, required: true }),
    options: &[],
    open: |opening| open(Kind::Qcow, opening),
};

pub(super) const VHDX: FormatDriver = FormatDriver {
    name: "vhdx",
    title: "a vhdx image",
    header: Some(FormatHeader {
        name: "vhdx",
        begins: |start| start.starts_with(vhdx::SIGNATURE),
        required: true,
    }),
    options: &[],
    open: |opening| open(Kind::Vhdx, opening),
};

fn open(kind: Kind, opening: Opening<'_>) -> OpeningFuture<'_> {
    let Opening { file, writable, vmdk, backing, .. } = opening;
    Box::pin(async move {
        if writable {
            let name = kind.name();
            let detail = format!(
                "{name} images are only read: open it read-only, or make a qcow2 image of it (convert -f {name} -O qcow2)"
            );
            return Err(Blame::new(file.name()).unsupported(detail).into());
        }
        if let Some(vmdk) = vmdk {
            let image = vmdk::open(file, &vmdk.description, vmdk.extents, backing).await?;
            return Ok(Arc::new(image) as Arc<dyn Block>);
        }
        if kind == Kind::Qcow {
            return Ok(Arc::new(qcow1::open(file, backing).await?) as Arc<dyn Block>);
        }
        Ok(formats::open(kind, file).await?)
    })
}
