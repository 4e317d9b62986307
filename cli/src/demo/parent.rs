//! The parent of the demo: starts the child, kills it when it has got far enough, starts it again.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::books::Books;
use super::script::Dice;
use super::{DemoError, Folder};
use crate::output::Progress;

/// How often the books are looked at, and how long a child may be silent.
const LOOK: Duration = Duration::from_micros(200);
const SILENCE: Duration = Duration::from_secs(30);
/// One kill in so many comes while the child opens the store; the others when it has noted up to so
/// many lines more. The jitter is in microseconds.
const EARLY_ONE_IN: u64 = 4;
const EARLY_JITTER: u64 = 6_000;
const LINES: u64 = 40;
const JITTER: u64 = 1_200;
/// Most bytes of a child's complaint that are shown.
const COMPLAINT: u64 = 4096;

/// How to start the child.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) folder: Folder,
    pub(super) seed: u64,
    pub(super) transcript: Option<PathBuf>,
    pub(super) kills: u64,
}

/// A child that does not outlive its parent's interest in it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a child came to its end.
enum End {
    Killed,
    /// It ended by itself, with what it said on stderr.
    Itself(ExitStatus, String),
}

impl Orders {
    /// Kills as often as ordered, then lets a last child finish its round. Gives the number of kills.
    pub(super) fn carry_out(
        &self,
        books: &mut Books,
        progress: &Progress,
    ) -> Result<u64, DemoError> {
        let mut dice = Dice::new(self.seed).fork(u64::MAX);
        let mut kills = 0;
        while kills < self.kills {
            let early = dice.below(EARLY_ONE_IN) == 0;
            let (lines, jitter) = match early {
                true => (1, dice.below(EARLY_JITTER)),
                false => (2 + dice.below(LINES), dice.below(JITTER)),
            };
            let jitter = Duration::from_micros(jitter);
            match self.run_child(Some((lines, jitter)), books, progress, kills)? {
                End::Killed => kills += 1,
                End::Itself(status, said) => return Err(DemoError::ChildEnded { status, said }),
            }
        }
        match self.run_child(None, books, progress, kills)? {
            End::Itself(status, _) if status.success() => Ok(kills),
            End::Itself(status, said) => Err(DemoError::ChildEnded { status, said }),
            End::Killed => Err(DemoError::Silent(SILENCE)),
        }
    }

    /// Runs a child until it has noted so many lines and the jitter has passed, or to its end.
    fn run_child(
        &self,
        until: Option<(u64, Duration)>,
        books: &mut Books,
        progress: &Progress,
        kills: u64,
    ) -> Result<End, DemoError> {
        let mut child = Running(self.start(until.is_none())?);
        books.update().map_err(DemoError::Books)?;
        // The first child's line may be there already, so count from what was there at its start.
        let start = books.lines;
        let mut seen = (start, Instant::now());
        loop {
            books.update().map_err(DemoError::Books)?;
            if books.lines != seen.0 {
                seen = (books.lines, Instant::now());
                progress.show(&format!(
                    "{kills} of {} kills, {} steps acknowledged",
                    self.kills,
                    books.steps()
                ));
            }
            match until {
                Some((lines, jitter)) if books.lines - start >= lines => {
                    std::thread::sleep(jitter);
                    return child.kill();
                }
                _ => {}
            }
            if let Some(status) = child.0.try_wait().map_err(DemoError::Child)? {
                books.update().map_err(DemoError::Books)?;
                return Ok(child.ended(status));
            }
            if seen.1.elapsed() > SILENCE {
                return Err(DemoError::Silent(SILENCE));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn start(&self, finish: bool) -> Result<Child, DemoError> {
        let program = std::env::current_exe().map_err(DemoError::Start)?;
        let mut command = Command::new(program);
        command
            .arg("demo-child")
            .arg("--dir")
            .arg(self.folder.path())
            .args(["--seed", &self.seed.to_string()]);
        if let Some(transcript) = &self.transcript {
            command.arg("--transcript").arg(transcript);
        }
        if finish {
            command.arg("--finish");
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(DemoError::Start)
    }
}

impl Running {
    fn kill(&mut self) -> Result<End, DemoError> {
        self.0.kill().map_err(DemoError::Child)?;
        let status = self.0.wait().map_err(DemoError::Child)?;
        Ok(match was_killed(status) {
            true => End::Killed,
            false => self.ended(status),
        })
    }

    fn ended(&mut self, status: ExitStatus) -> End {
        let mut said = Vec::new();
        if let Some(stderr) = self.0.stderr.take() {
            // What cannot be read is not shown.
            let _ = stderr.take(COMPLAINT).read_to_end(&mut said);
        }
        End::Itself(status, String::from_utf8_lossy(&said).into_owned())
    }
}

#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal().is_some()
}

#[cfg(not(unix))]
fn was_killed(status: ExitStatus) -> bool {
    !status.success()
}
