//! Passwords that are asked for on the terminal, where an encrypted image has none by `--object`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write, stdin};
use std::sync::Arc;

use graph::{Ask, Secrets};
use luks::Secret;
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use tool::output::printable;
use tool::voice;

use crate::objects::leave_no_core_dump;

/// The controlling terminal, whatever standard input is.
const TERMINAL: &str = "/dev/tty";
/// Bytes of a password that is typed at most: as many as cryptsetup takes.
const PASSWORD_BYTES_MAX: usize = 512;

/// The terminal on which the program runs.
#[derive(Debug)]
struct Terminal;

/// From now on passwords without an id are asked for on the terminal, if standard input is one and this
/// program runs in the foreground. Never under the names of QEMU's programs, which do not ask.
pub fn on_terminal() {
    let is_in_front = || tcgetpgrp(File::open(TERMINAL).ok()?).ok().filter(|&group| group == getpgrp());
    if !voice::is_qemu() && stdin().is_terminal() && is_in_front().is_some() {
        Secrets::default().ask(Some(Arc::new(Terminal)));
    }
}

/// From now on no password is asked for: clients wait for the program, and there may be no user at the
/// terminal.
pub fn nobody() {
    Secrets::default().ask(None);
}

impl Ask for Terminal {
    fn password(&self, image: &str) -> io::Result<Secret> {
        leave_no_core_dump().map_err(|failure| io::Error::other(failure.to_string()))?;
        let terminal = OpenOptions::new().read(true).write(true).open(TERMINAL)?;
        loop {
            let answer = Silent::begin(&terminal).and_then(|silent| silent.ask(image))?;
            let signal = match answer {
                Answer::Password(password) => return Ok(password),
                Answer::Signal(signal) => signal,
            };
            // The terminal is as it was. What the key means everywhere else happens now; a program that was stopped asks again.
            kill_process(getpid(), signal)?;
            if signal != Signal::TSTP {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }
}

/// How a question ended.
enum Answer {
    Password(Secret),
    /// The key of a signal was pressed.
    Signal(Signal),
}

/// A terminal that shows nothing of what is typed, until this is dropped. Keys of signals arrive as bytes: nothing ends the program before the
/// terminal is as it was.
struct Silent<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Silent<'a> {
    fn begin(terminal: &'a File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut modes = before.clone();
        modes.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON);
        modes.local_modes.remove(LocalModes::ISIG | LocalModes::IEXTEN);
        // What was typed before the question is no answer.
        tcsetattr(terminal, OptionalActions::Flush, &modes)?;
        Ok(Self { terminal, before })
    }

    fn ask(&self, image: &str) -> io::Result<Answer> {
        let mut terminal = self.terminal;
        write!(terminal, "Password of {}: ", printable(image))?;
        let answer = self.line();
        writeln!(terminal)?;
        answer
    }

    fn line(&self) -> io::Result<Answer> {
        let (mut password, mut len) = (Secret::zeroed(PASSWORD_BYTES_MAX), 0);
        let mut terminal = self.terminal;
        loop {
            let mut key = [0];
            if terminal.read(&mut key)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match key[0] {
                b'\r' | b'\n' => break,
                key::END if len == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                key::END => break,
                key::INTERRUPT => return Ok(Answer::Signal(Signal::INT)),
                key::QUIT => return Ok(Answer::Signal(Signal::QUIT)),
                key::STOP => return Ok(Answer::Signal(Signal::TSTP)),
                key::RUB_OUT | key::BACKSPACE => len = without_last_letter(&password.bytes()[..len]),
                key::CLEAR => len = 0,
                _ if len == PASSWORD_BYTES_MAX => {
                    let what = format!(
                        "a password that is typed has at most {PASSWORD_BYTES_MAX} bytes; give --object secret,id=ID,file=PATH"
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                }
                byte => {
                    password.bytes_mut()[len] = byte;
                    len += 1;
                }
            }
        }
        password.truncate(len);
        Ok(Answer::Password(password))
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = tcsetattr(self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// Length of `text` (UTF-8) without its last letter.
fn without_last_letter(text: &[u8]) -> usize {
    text.iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or(0)
}

/// What keys of a terminal send.
mod key {
    pub const INTERRUPT: u8 = 3;
    pub const END: u8 = 4;
    pub const BACKSPACE: u8 = 8;
    pub const CLEAR: u8 = 21;
    pub const STOP: u8 = 26;
    pub const QUIT: u8 = 28;
    pub const RUB_OUT: u8 = 127;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_letter_is_all_of_its_bytes() {
        let table = [("", 0), ("a", 0), ("ab", 1), ("aü", 1), ("aü€", 3), ("€", 0)];
        table.iter().for_each(|(text, len)| assert_eq!(without_last_letter(text.as_bytes()), *len, "{text}"));
    }
}
