//! `cowhand amend`: what an image is, changed after it was made.

mod luks;
mod steps;

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use block::SECTOR_BYTES;
use graph::cache_mode::CacheMode;
use graph::options::{Backing, DiskOptions};
use graph::probe::Format;
use graph::{Disk, OpenRules};
use qcow2::{Qcow2, ResizeOptions};
use qcow2_layout::Header;
use tool::amend::keys;
use tool::amend::options::{self, AmendOptions};
use tool::create::options::asks_for_help;
use tool::failure::{Failure, warn};
use tool::voice;

use self::steps::Steps;
use crate::copying;
use crate::copying::watch::{Watch, survive_questions};
use crate::drive::{OpenArgs, cache_modes, formats};
use crate::progress::Progress;

/// Arguments of `cowhand amend`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Change what an image is: version of the format, width of refcounts, lazy refcounts, size, names of its files, \
        passwords that open it. The disk reads as before.\n\n\
        Of a LUKS file the passwords change, with the same options without \"encrypt.\"; of version 2, cryptsetup changes them.\n\n\
        The image must not be open elsewhere. Each change is whole or not there at all, whatever happens meanwhile. What an \
        older version of the format cannot say is refused by name; persistent bitmaps are removed.",
    after_help = "\
Examples:
  cowhand amend -o compat=1.1,lazy_refcounts=on disk.qcow2
  cowhand amend -o refcount_bits=1 disk.qcow2
  cowhand amend -o compat=0.10,refcount_bits=16 disk.qcow2
  cowhand amend --object secret,id=old,file=old.txt --object secret,id=new,file=new.txt \\
    -o encrypt.state=active,encrypt.new-secret=new \\
    --image-opts file=disk.qcow2,encrypt.key-secret=old
  cowhand amend --object secret,id=old,file=old.txt \\
    -o state=inactive,old-secret=old --image-opts driver=luks,file=disk.luks,key-secret=old
  cowhand amend -o help
  cowhand amend -f luks -o help"
)]
pub struct Args {
    /// What changes: name=value,... (-o help lists all; may be repeated)
    #[arg(short = 'o', value_name = "OPTIONS", required = true)]
    options: Vec<String>,

    /// Change also what loses something: a smaller size, the last key
    #[arg(long)]
    force: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,

    /// The image: a path, or a DRIVE
    #[arg(value_name = "DRIVE", required_unless_present = "options")]
    drive: Option<OsString>,

    /// Format of the image: qcow2, raw or luks [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    format: Option<Format>,

    #[command(flatten)]
    opening: OpenArgs,
}

/// Amends an image.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if asks_for_help(&args.options) {
        out.write_all(options::help(args.format_of_help()?).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(drive) = &args.drive else { return Err(Failure::new("no DRIVE is given")) };
    let mut options = args.opening.options(drive, "-f", args.format)?;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    let failed = |error: &dyn Error| copying::because("amend", &options, error);
    survive_questions()?;
    let reactor = copying::reactor()?;
    if reactor.run(luks::is_meant(&options)).map_err(|error| failed(&error))? {
        let amended = reactor.run(luks::amend(&options, &args.options, args.force));
        return amended.map(|()| ExitCode::SUCCESS).map_err(|error| failed(&*error));
    }
    let wanted = AmendOptions::parse(&args.options).map_err(|error| failed(&error))?;
    let rules = OpenRules { policy: args.opening.policy()?, ..OpenRules::default() };
    let keys = wanted.keys.change(keys::ENCRYPT).map_err(|error| failed(&error))?;
    let watch = Watch::begin(args.progress && !args.quiet)?;
    let job = Job { args, wanted, keys, options, rules, watch };
    reactor.run(job.run())?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The format whose options are listed. qemu-img has no default: it looks into the file.
    fn format_of_help(&self) -> Result<Format, Failure> {
        if !voice::is_qemu() {
            return Ok(self.format.unwrap_or(Format::Qcow2));
        }
        let format = match (self.format, &self.drive) {
            (Some(format), _) => format,
            (None, None) => return Err(Failure::new("no DRIVE is given")),
            (None, Some(drive)) => {
                let options = self.opening.options(drive, "-f", None)?;
                let failed = |error: &dyn Error| copying::because("amend", &options, error);
                copying::reactor()?.run(luks::format_of(&options)).map_err(|error| failed(&error))?
            }
        };
        match format {
            Format::Qcow2 | Format::Luks => Ok(format),
            _ => Err(Failure::new(format!("images of format {format} have no options to amend"))),
        }
    }
}

/// One image on its way.
struct Job<'a> {
    args: &'a Args,
    wanted: AmendOptions,
    keys: Option<keys::Change>,
    options: DiskOptions,
    rules: OpenRules,
    watch: Watch,
}

impl Job<'_> {
    /// To an older version the size comes first, while the image can say everything; otherwise last, when it can say more.
    async fn run(&self) -> Result<(), Failure> {
        let (disk, image) = self.open(self.wanted.size.is_some()).await?;
        let header = image.header().await;
        let checked = self.check(&image).await;
        let downgrade = self.wanted.amendment.is_downgrade(&header);
        let is_shown = voice::is_qemu() && self.args.progress && !self.args.quiet;
        let steps = Steps::begin(is_shown, downgrade, self.wanted.amendment.changes_width(&header));
        let prepared = match checked {
            Ok(()) if downgrade => self.prepare_for_version_2(&disk, &image, &steps).await,
            Ok(()) if self.wanted.amendment.is_upgrade(&header) => {
                image.prepare_for_version_3().await.map_err(|error| self.failed(&error))
            }
            checked => checked,
        };
        copying::finish(&disk, prepared, |error| self.failed(error)).await?;
        // The disk is closed and its lock still held: no other process has changed the image since.
        self.amend(&image, &steps).await?;
        if let Some(change) = &self.keys {
            self.change_keys(change, &image, &header).await?;
        }
        drop((disk, image));
        if !downgrade {
            self.resize_alone().await?;
        }
        steps.end();
        Ok(())
    }

    async fn open(&self, with_backing: bool) -> Result<(Arc<Disk>, Qcow2), Failure> {
        let mut options = self.options.clone();
        if !with_backing {
            options.layer.backing = Backing::None;
        }
        let disk = copying::open(&options, &self.rules, "amend").await?;
        match disk.image() {
            Some(image) => Ok((disk, image)),
            None => {
                let what =
                    format!("{} is raw: it has nothing that could be amended", options.filename.display());
                Err(Failure::new(what))
            }
        }
    }

    /// Everything that can be wrong with what is asked for, before anything is changed.
    async fn check(&self, image: &Qcow2) -> Result<(), Failure> {
        let header = image.header().await;
        self.wanted.check_backing(&header).map_err(|error| self.failed(&error))?;
        self.wanted.amendment.check(image.file().name(), &header).map_err(|error| self.failed(&error))?;
        if self.keys.is_some() && !image.is_encrypted() {
            let what = format!("{} is not encrypted: it has no keys", self.options.filename.display());
            return Err(Failure::new(what));
        }
        match self.wanted.size {
            Some(size) if size < image.size() && !self.may_shrink() => {
                let what = format!(
                    "the new size ({size} bytes) is below the old one ({} bytes): what lies beyond would be lost",
                    image.size()
                );
                Err(Failure::new(what).with_hint("if that is meant, add --force"))
            }
            _ => Ok(()),
        }
    }

    /// QEMU's tool shrinks at once.
    fn may_shrink(&self) -> bool {
        self.args.force || voice::is_qemu()
    }

    async fn prepare_for_version_2(&self, disk: &Disk, image: &Qcow2, steps: &Steps) -> Result<(), Failure> {
        self.resize(disk).await?;
        let bitmaps = image.prepare_for_version_2(steps.visited()).await;
        let bitmaps = bitmaps.map_err(|error| self.failed(&error))?;
        if !bitmaps.is_empty() && !self.args.quiet {
            warn(&format!(
                "{}: compat=0.10 has no persistent bitmaps; {} removed",
                self.options.filename.display(),
                match bitmaps.len() {
                    1 => "one was".to_owned(),
                    count => format!("{count} were"),
                }
            ));
        }
        Ok(())
    }

    async fn amend(&self, image: &Qcow2, steps: &Steps) -> Result<(), Failure> {
        // Of what could take long nothing is done yet.
        self.watch.check()?;
        let mut progress: Option<Progress> = None;
        let mut reported = |done_bytes, total_bytes| {
            if voice::is_qemu() {
                return steps.width_is_at(&self.watch, done_bytes, total_bytes);
            }
            let progress = progress.get_or_insert_with(|| self.watch.progress(total_bytes));
            self.watch.look(progress, done_bytes)
        };
        let amended = qcow2::amend(&**image.file(), &self.wanted.amendment, &mut reported).await;
        if let Some(mut progress) = progress {
            progress.end();
        }
        amended.map_err(|error| self.failed(&error))
    }

    async fn change_keys(
        &self,
        change: &keys::Change,
        image: &Qcow2,
        header: &Header,
    ) -> Result<(), Failure> {
        let Some(area) = qcow2::luks_area(header) else { return Ok(()) };
        let id = self.options.layer.key_secret.as_deref();
        change.make(&**image.file(), area, id, self.args.force).await.map_err(|error| self.failed(&*error))
    }

    async fn resize_alone(&self) -> Result<(), Failure> {
        if self.wanted.size.is_none() {
            return Ok(());
        }
        let (disk, _image) = self.open(true).await?;
        let resized = self.resize(&disk).await;
        copying::finish(&disk, resized, |error| self.failed(error)).await
    }

    /// Nothing, if the disk has the size.
    async fn resize(&self, disk: &Disk) -> Result<(), Failure> {
        let Some(size) = self.wanted.size.map(|size| size.next_multiple_of(SECTOR_BYTES)) else {
            return Ok(());
        };
        if size == disk.size() {
            return Ok(());
        }
        let options = ResizeOptions { shrink: self.may_shrink(), bitmaps: true, ..ResizeOptions::default() };
        disk.resize(size, options).await.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &dyn Error) -> Failure {
        copying::because("amend", &self.options, error)
    }
}
