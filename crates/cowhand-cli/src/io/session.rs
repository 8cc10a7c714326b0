//! A running script: the open disk, its asynchronous requests, its output.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use graph::drive::OptionTree;
use graph::{Disk, OpenRules};
use qcow2::{Compressing, Preallocation, ResizeOptions};
use tool::failure::Failure;
use tool::numbers::whole;

use super::breakpoints::{self, Watch};
use super::command::{Command, Needs, Verb, help};
use super::failed::Failed;
use super::look;
use super::opening::{Manner, Opened};
use super::request::{Ended, Form, Request};
use super::words::{Words, bytes, split};

/// Commands of a script, one after the other.
pub struct Session<'a> {
    rules: OpenRules,
    pub(super) out: &'a mut dyn Write,
    opened: Option<Opened>,
    compressing: Option<Arc<Compressing>>,
    /// Asynchronous requests; each ends by itself.
    pub(super) aside: FuturesUnordered<LocalBoxFuture<'static, Ended>>,
    /// What is held back at breakpoints.
    pub(super) watch: Watch,
    failed: bool,
    ended: bool,
}

impl<'a> Session<'a> {
    /// Without a disk.
    pub fn new(rules: OpenRules, out: &'a mut dyn Write) -> Self {
        let (aside, watch) = (FuturesUnordered::new(), Watch::default());
        Self { rules, out, opened: None, compressing: None, aside, watch, failed: false, ended: false }
    }

    /// Opens a disk.
    ///
    /// # Errors
    /// When one is open, or this one cannot be opened.
    pub async fn open(&mut self, manner: &Manner, tree: OptionTree) -> Result<(), Failure> {
        if self.opened.is_some() {
            return Err(Failure::new("a disk is open already; close it first"));
        }
        self.opened = Some(manner.open(tree, &self.rules).await?);
        Ok(())
    }

    /// Whether a command asked for the end.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Runs a line. A command that fails is reported, and counts for the exit code.
    ///
    /// # Errors
    /// When nothing can be written any more.
    pub async fn line(&mut self, line: &str) -> Result<(), Failure> {
        let words = split(line);
        let done = match words.split_first() {
            Some((name, words)) => self.command(name, words).await,
            None => Ok(()),
        };
        self.settle(done)?;
        Ok(self.out.flush()?)
    }

    fn settle(&mut self, done: Result<(), Failed>) -> Result<(), Failure> {
        match done {
            Ok(()) => Ok(()),
            Err(Failed::Output(error)) => Err(error.into()),
            Err(Failed::Shown) => {
                self.failed = true;
                Ok(())
            }
            Err(Failed::Because(failure)) => {
                self.failed = true;
                self.out.flush()?;
                failure.report();
                Ok(())
            }
        }
    }

    /// Writes what stands before a line that is typed.
    ///
    /// # Errors
    /// When nothing can be written any more.
    pub fn prompt(&mut self) -> io::Result<()> {
        write!(self.out, "qemu-io> ")?;
        self.out.flush()
    }

    /// Waits for all requests and closes the disk; whether all commands did what they were to do.
    ///
    /// # Errors
    /// When nothing can be written any more.
    pub async fn end(mut self) -> Result<bool, Failure> {
        self.disk().iter().for_each(|disk| breakpoints::resume_all(disk));
        let done = self.wait_for_all().await;
        self.settle(done)?;
        let closed = self.close().await.map_err(Failed::from);
        self.settle(closed)?;
        Ok(!self.failed)
    }

    async fn close(&mut self) -> Result<(), Failure> {
        self.compressing = None;
        match self.opened.take() {
            Some(opened) => opened.close().await,
            None => Ok(()),
        }
    }

    pub(super) fn disk(&self) -> Result<Arc<Disk>, Failure> {
        let opened = self.opened.as_ref().map(|opened| Arc::clone(&opened.disk));
        opened.ok_or_else(|| Failure::new("no disk is open; open one first (help open)"))
    }

    fn check(&self, needs: Needs) -> Result<(), Failure> {
        match needs {
            Needs::Nothing => Ok(()),
            Needs::Disk => self.disk().map(drop),
            Needs::Writing => match self.disk()?.read_only() {
                false => Ok(()),
                true => Err(Failure::new("the disk is open read-only (reopen -w changes that)")),
            },
        }
    }

    async fn command(&mut self, name: &str, words: &[&str]) -> Result<(), Failed> {
        let command = Command::find(name, words.len())?;
        self.check(command.needs)?;
        match command.verb {
            Verb::Abort => self.abort(),
            Verb::AioFlush => self.wait_for_all().await,
            Verb::Break => breakpoints::set(&*self.disk()?, words, self.out),
            Verb::RemoveBreak => breakpoints::remove(&*self.disk()?, words, self.out),
            Verb::Resume => breakpoints::resume(&*self.disk()?, words, self.out),
            Verb::WaitBreak => self.wait_break(words).await,
            Verb::Alloc => look::alloc(&*self.disk()?, words, self.out).await,
            Verb::Close => Ok(self.wait_and_close().await?),
            Verb::Discard => self.request(Request::discard(words)?).await,
            Verb::Flush => self.flush().await,
            Verb::Help => Ok(help(words.first().copied(), self.out)??),
            Verb::Info => {
                let bare = self.opened.as_ref().and_then(|opened| opened.bare.clone());
                look::info(&*self.disk()?, bare.as_deref(), self.out).await
            }
            Verb::Length => look::length(&*self.disk()?, self.out),
            Verb::Map => look::map(&*self.disk()?, self.out).await,
            Verb::Open => {
                let (manner, tree) = Manner::of_words(words)?;
                Ok(self.open(&manner, tree).await?)
            }
            Verb::Quit => {
                self.ended = true;
                Ok(())
            }
            Verb::Read(form) => self.read(words, form).await,
            Verb::Reopen => self.reopen(words).await,
            Verb::SigRaise => self.raise(words),
            Verb::Sleep => self.sleep(words).await,
            Verb::Truncate => self.truncate(words).await,
            Verb::Write(form) => self.write(words, form).await,
        }
    }

    async fn wait_and_close(&mut self) -> Result<(), Failed> {
        self.wait_for_all().await?;
        Ok(self.close().await?)
    }

    async fn read(&mut self, words: &[&str], form: Form) -> Result<(), Failed> {
        let request = Request::read(words, form)?;
        if form == Form::Aside && Words::parse(words, "CiP:qrv")?.has('i') {
            return Ok(writeln!(self.out, "injecting invalid read request")?);
        }
        self.start(request, form).await
    }

    async fn write(&mut self, words: &[&str], form: Form) -> Result<(), Failed> {
        let request = Request::write(words, form)?;
        if form == Form::Aside && Words::parse(words, "CfiP:qruz")?.has('i') {
            return Ok(writeln!(self.out, "injecting invalid write request")?);
        }
        self.start(request, form).await
    }

    async fn start(&mut self, request: Request, form: Form) -> Result<(), Failed> {
        if form != Form::Aside {
            return self.request(request).await;
        }
        let performing = request.perform(self.disk()?, None);
        self.aside.push(Box::pin(performing));
        // It begins now, and not when the next command waits for something.
        self.rest_for(reactor::yield_now()).await
    }

    async fn request(&mut self, request: Request) -> Result<(), Failed> {
        let disk = self.disk()?;
        let compressing = self.compressing(&disk);
        let ended = self.wait_for(request.perform(disk, compressing)).await?;
        match ended.show(self.out)? {
            true => Ok(()),
            false => Err(Failed::Shown),
        }
    }

    /// Where compressed clusters go: behind those of earlier requests.
    fn compressing(&mut self, disk: &Disk) -> Option<Arc<Compressing>> {
        if self.compressing.is_none() {
            self.compressing = disk.compressing().ok().map(Arc::new);
        }
        self.compressing.clone()
    }

    async fn flush(&mut self) -> Result<(), Failed> {
        let disk = self.disk()?;
        let flushed = self.wait_for(async { disk.flush().await }).await?;
        match flushed {
            Ok(()) => Ok(()),
            Err(error) => Err(Failure::because("cannot flush", &error).into()),
        }
    }

    async fn truncate(&mut self, words: &[&str]) -> Result<(), Failed> {
        let words = Words::parse(words, "m:")?;
        words.at_most(1)?;
        let size = bytes(words.operand(0, "the size")?, "size")?;
        let mode = words.value('m').unwrap_or("off");
        let all = [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full];
        let preallocation = all.into_iter().find(|known| known.name() == mode).ok_or_else(|| {
            Failure::new(format!("the mode is {mode:?}; allowed: off, metadata, falloc, full"))
        })?;
        self.wait_for_all().await?;
        let disk = self.disk()?;
        let options = ResizeOptions { shrink: true, preallocation, bitmaps: true };
        let resized = disk.resize(size, options).await;
        Ok(resized.map_err(|error| Failure::because("cannot change the size", &error))?)
    }

    async fn reopen(&mut self, words: &[&str]) -> Result<(), Failed> {
        self.wait_for_all().await?;
        self.again(|opened| opened.changed(words)).await
    }

    /// Opens the disk again, with the options that `choose` gives.
    async fn again(
        &mut self,
        choose: impl FnOnce(&Opened) -> Result<OptionTree, Failure>,
    ) -> Result<(), Failed> {
        let Some(opened) = &self.opened else { return Ok(()) };
        let tree = choose(opened)?;
        self.compressing = None;
        let Some(opened) = self.opened.take() else { return Ok(()) };
        let (opened, result) = opened.again(tree, &self.rules).await;
        self.opened = opened;
        Ok(result?)
    }

    async fn sleep(&mut self, words: &[&str]) -> Result<(), Failed> {
        let text = words.first().copied().unwrap_or_default();
        let time = whole(text).map(Duration::from_millis);
        let time = time.map_err(|_| Failure::new(format!("the time is {text:?}; allowed: milliseconds")))?;
        self.rest_for(reactor::sleep(time)).await
    }

    fn raise(&mut self, words: &[&str]) -> Result<(), Failed> {
        let text = words.first().copied().unwrap_or_default();
        let number =
            whole(text).map_err(|_| Failure::new(format!("the signal is {text:?}; allowed: a number")))?;
        self.out.flush()?;
        let raised = signal_hook::low_level::raise(number);
        raised.map_err(|error| Failure::because(format!("cannot raise signal {number}"), &error).into())
    }

    fn abort(&mut self) -> Result<(), Failed> {
        self.out.flush()?;
        std::process::abort()
    }
}
