//! What blockdev-create does: a file is made, or an image in a file that a node stands for.
//!
//! Errors of the request are reported by the job, as by QEMU's. The command itself checks names and types,
//! and whether the sandbox permits making the file, a check that QEMU does not have.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use block::SECTOR_BYTES;
use control::{NUMBER_MAX, QmpError};
use cowhand::Existing;
use graph::OnLoop;
use graph::probe::Format;
use graph::{FileToFill, User};
use job::{Error, Life};
use qcow2::{CreateOptions, Preallocation};
use serde_json::{Map, Value};
use storage::{Allocation, Storage};
use tool::create::encryption::Encryption;
use tool::create::options::NewImage;

use super::failed::Failed;
use crate::inventory::nodes::Nodes;
use crate::made_file::MadeFile;

/// Members of the options that lead to files; all others say what is to be in them.
const PLACES: [&str; 5] = ["driver", "filename", "file", "data-file", "header"];

/// A file or an image that is to be made.
pub struct Creation {
    job: String,
    options: Map<String, Value>,
    made: RefCell<Option<MadeFile>>,
}

impl Creation {
    /// What `options` (blockdev-create's) describe, for the job called `job`.
    pub fn new(job: &str, options: &Map<String, Value>) -> Self {
        Self { job: job.to_owned(), options: options.clone(), made: RefCell::default() }
    }

    /// Whether a file may be made where it is to be.
    ///
    /// # Errors
    /// When the system, or the sandbox, does not let us.
    pub fn check_reach(&self) -> Result<(), QmpError> {
        let Some(path) = self.text("filename").ok().filter(|_| self.text("driver").ok() == Some("file"))
        else {
            return Ok(());
        };
        let is_there = Path::new(path).symlink_metadata().is_ok();
        let opened =
            File::options().write(true).create_new(!is_there).custom_flags(libc::O_NONBLOCK).open(path);
        match opened {
            Ok(_) if !is_there => drop(std::fs::remove_file(path)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(QmpError::because(format!("cannot create {path}"), &error));
            }
            // The job reports it.
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }

    /// Makes it; it is durable afterwards. A job that is cancelled meanwhile ends when the file is made, and not before.
    ///
    /// # After a crash
    /// A qcow2 or LUKS image has no header before it is whole.
    pub(super) async fn run(&self, nodes: &Nodes, life: &Life) -> Result<(), Failed> {
        life.set_progress(0, 1);
        let made = match self.text("driver") {
            Ok("file") => self.make_file().await,
            Ok("luks") => self.make_image(nodes, Format::Luks).await,
            Ok(_) => self.make_image(nodes, Format::Qcow2).await,
            Err(error) => Err(error),
        };
        life.set_progress(1, 1);
        made.map_err(|error| Failed::Because(nodes.hinted(error).desc))?;
        match life.is_given_up() {
            true => Err(Error::Cancelled.into()),
            false => Ok(()),
        }
    }

    /// The job has ended early: a file that was not there before goes.
    pub(super) fn undo(&self) {
        self.made.take().iter().for_each(MadeFile::remove);
    }

    fn text(&self, name: &str) -> Result<&str, QmpError> {
        let text = self.options.get(name).and_then(Value::as_str);
        text.ok_or_else(|| QmpError::generic(format!("argument '{name}' is missing")))
    }

    async fn make_file(&self) -> Result<(), QmpError> {
        let path = self.text("filename")?;
        let options = self.wanted(Format::Raw)?.options;
        let new =
            cowhand::NewImage { format: Format::Raw, options, existing: Existing::Replace, encryption: None };
        let made = MadeFile::make(path, new).await;
        let made = made.map_err(|error| QmpError::because(format!("cannot create {path}"), &error))?;
        self.made.replace(Some(made));
        Ok(())
    }

    async fn make_image(&self, nodes: &Nodes, format: Format) -> Result<(), QmpError> {
        let mut image = self.wanted(format)?;
        let volume = image.encryption.as_ref().map(Encryption::volume).transpose();
        let volume = volume.map_err(|error| QmpError::generic(error.to_string()))?;
        let header = self.open(nodes, "header").await?;
        let file = self.open(nodes, "file").await?;
        let (file, behind) = match (header, file) {
            (Some(header), file) => (header, file),
            (None, Some(file)) => (file, None),
            (None, None) => return Err(QmpError::generic("argument 'file' is missing")),
        };
        let data = self.open(nodes, "data-file").await?;
        image.options.data_file = data.as_ref().map(|data| data.full_name.clone());
        let options = &image.options;
        let failed = |error: &(dyn std::error::Error + 'static)| {
            QmpError::because(format!("cannot make a {format} image of {}", file.storage.name()), error)
        };
        let data = data.as_ref().map(|data| &*data.storage as &dyn Storage);
        match (format, volume) {
            (Format::Luks, Some(mut volume)) => {
                let allocation = allocation(options.preallocation);
                volume.is_detached |= self.options.contains_key("header");
                // As long as the disk before there is a header: what was in it is as good as noise.
                if let Some(file) = &behind {
                    let sized = give_length(&*file.storage, options.size, allocation).await;
                    sized.map_err(|error| failed(&error))?;
                }
                let written = volume.write_file(&*file.storage, options.size, allocation, &OnLoop).await;
                written.map(drop).map_err(|error| failed(&error))
            }
            (_, Some(volume)) => {
                let made = qcow2::create_encrypted(&*file.storage, data, options, &volume, &OnLoop).await;
                made.map_err(|error| failed(&error))
            }
            (_, None) => {
                let made = qcow2::create(&*file.storage, data, options).await;
                made.map_err(|error| failed(&error))
            }
        }
    }

    /// Opens the file that `member` names or describes, if there is one.
    async fn open(&self, nodes: &Nodes, member: &str) -> Result<Option<FileToFill>, QmpError> {
        let Some(file) = self.options.get(member) else { return Ok(None) };
        let user = User { kind: "job", name: self.job.clone() };
        let change = nodes.graph.change().await;
        let opened = nodes.graph.open_to_fill(&change, member, file, &user).await;
        opened.map(Some).map_err(|error| nodes.refused(&error))
    }

    /// What is to be in it, by the table of creation options.
    fn wanted(&self, format: Format) -> Result<NewImage, QmpError> {
        let mut assignments = Vec::new();
        for (name, value) in self.options.iter().filter(|(name, _)| !PLACES.contains(&name.as_str())) {
            match (name.as_str(), value) {
                ("encrypt", Value::Object(encrypt)) => assignments
                    .extend(encrypt.iter().map(|(name, value)| (format!("encrypt.{name}"), written(value)))),
                ("version", value) => assignments.push(("compat".to_owned(), written(value))),
                (name, value) if format != Format::Luks => {
                    assignments.push((name.replace('-', "_"), written(value)));
                }
                (name, value) => assignments.push((name.to_owned(), written(value))),
            }
        }
        let size = self.options.get("size").and_then(Value::as_u64);
        let size = size.ok_or_else(|| QmpError::generic("argument 'size' is missing"))?;
        if size > NUMBER_MAX {
            let what = format!("argument 'size' is {size}; it must be at most {NUMBER_MAX}");
            return Err(QmpError::generic(what));
        }
        let image = NewImage::of_assignments(format, assignments);
        let mut image = image.map_err(|error| QmpError::generic(error.0.trim_start_matches("-o ")))?;
        if !size.is_multiple_of(SECTOR_BYTES) {
            let what = format!("argument 'size' is {size}; it must be a multiple of {SECTOR_BYTES}");
            return Err(QmpError::generic(what));
        }
        if image.options.backing_format.is_some() && image.options.backing_file.is_none() {
            return Err(QmpError::generic("argument 'backing-fmt' means nothing without 'backing-file'"));
        }
        image.options = CreateOptions { size, keeps_data_file: true, ..image.options };
        Ok(image)
    }
}

/// A value as the command line has it.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Makes a file as long as a disk.
async fn give_length(file: &dyn Storage, len: u64, allocation: Option<Allocation>) -> io::Result<()> {
    match file.length() > len {
        true => file.shorten_to(len).await?,
        false => file.grow_to(len).await?,
    }
    match allocation.filter(|_| len > 0) {
        Some(how) => file.allocate(0, len, how).await,
        None => Ok(()),
    }
}

/// How space of a file is reserved.
fn allocation(preallocation: Preallocation) -> Option<Allocation> {
    match preallocation {
        Preallocation::Off | Preallocation::Metadata => None,
        Preallocation::Falloc => Some(Allocation::Reserve),
        Preallocation::Full => Some(Allocation::Write),
    }
}
