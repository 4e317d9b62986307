//! The command line of stepwell: looks into a store of agent sessions, verifies it, and
//! demonstrates on the real disk what it promises.
//!
//! Exit status: 0 ok, 1 damage was found or the operation failed, 2 wrong usage. Errors are one line
//! on stderr that says what to do.

mod args;
mod backup;
mod bench;
mod delete;
mod demo;
mod dump;
mod export;
mod failure;
mod fork;
mod history;
mod import;
mod inspect;
mod output;
mod repair;
mod rewind;
mod sessions;
mod story;
mod target;
mod transcript;
mod verify;

use std::process::ExitCode;

use args::{Args, Command};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use failure::{Failure, one_line};
use output::Output;

/// What a command found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// All is well.
    Ok,
    /// Damage to acknowledged data, or a promise that was not kept; it has been told.
    Bad,
}

const BAD: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let mut out = Output::stdout();
    let done = run(args.command, &mut out).and_then(|verdict| {
        out.finish()?;
        Ok(verdict)
    });
    match done {
        Ok(Verdict::Ok) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::from(BAD),
        Err(failure) => {
            // What was found before it failed is shown first, if anybody still reads.
            let _ = out.finish();
            output::complain(&one_line(&failure.to_string()));
            ExitCode::from(BAD)
        }
    }
}

fn run(command: Command, out: &mut Output) -> Result<Verdict, Failure> {
    match command {
        Command::Sessions(args) => sessions::run(&args, out),
        Command::History(args) => history::run(&args, out),
        Command::Verify(args) => verify::run(&args, out),
        Command::Repair(args) => repair::run(&args, out),
        Command::Export(args) => export::run(&args, out),
        Command::Import(args) => import::run(&args, out),
        Command::Backup(args) => backup::run(&args, out),
        Command::Fork(args) => fork::run(&args, out),
        Command::Rewind(args) => rewind::run(&args, out),
        Command::Delete(args) => delete::run(&args, out),
        Command::Prune(args) => delete::prune(&args, out),
        Command::Inspect(args) => inspect::run(&args, out),
        Command::Dump(args) => dump::run(&args, out),
        Command::Demo(args) => demo::run(&args, out),
        Command::Bench(args) => bench::run(&args, out),
        Command::DemoChild(args) => {
            demo::child::run(&args)?;
            Ok(Verdict::Ok)
        }
    }
}

/// Help and version are what was asked for; anything else is wrong usage, told in one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let mut out = Output::stdout();
            let text = error.to_string();
            let shown = out.line(text.trim_end()).and_then(|()| out.finish());
            match shown {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(BAD),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::complain("no command was given; see 'stepwell --help'");
            ExitCode::from(USAGE)
        }
        _ => {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let cause = text.split("\n\n").next().unwrap_or(text);
            output::complain(&format!(
                "{}; see 'stepwell {}--help'",
                one_line(cause),
                command_name().map_or(String::new(), |name| format!("{name} "))
            ));
            ExitCode::from(USAGE)
        }
    }
}

/// The command that was given, if there is one of that name: its own help says more.
fn command_name() -> Option<String> {
    let given = std::env::args_os().nth(1)?.into_string().ok()?;
    let known = Args::command().find_subcommand(&given).is_some();
    known.then_some(given)
}
