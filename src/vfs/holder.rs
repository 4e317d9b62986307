//! Which process this is, for those that find a journal locked.

use std::fmt;
use std::sync::OnceLock;

use crate::identity::Timestamp;

/// A process that holds the lock of a journal. For people: nothing is decided by it, since the file
/// that says it is not durable and may be older than the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// The name of the machine; empty if it is not known.
    pub host: String,
    /// The boot of the machine, as its system names it; empty if it is not known. A process of
    /// another boot is gone.
    pub boot_id: String,
    /// When the process was started, if that is known.
    pub started: Option<Timestamp>,
}

impl Holder {
    /// A process of a simulated machine.
    pub(super) fn simulated(pid: u32) -> Holder {
        Holder {
            pid,
            host: "simulated".to_owned(),
            boot_id: String::new(),
            started: Timestamp::new(0, 0).ok(),
        }
    }

    /// This process. What does not change while it lives is asked of the system once.
    pub(super) fn this_process() -> Holder {
        static REST: OnceLock<Holder> = OnceLock::new();
        let rest = REST.get_or_init(|| Holder {
            pid: 0,
            host: host(),
            boot_id: boot_id(),
            started: started(),
        });
        Holder {
            pid: std::process::id(),
            ..rest.clone()
        }
    }
}

impl Holder {
    /// Whether it is the process that asks.
    pub(crate) fn is_this_process(&self) -> bool {
        *self == Holder::this_process()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        if !self.host.is_empty() {
            write!(f, " on host {}", self.host)?;
        }
        match self.started {
            Some(started) => write!(f, " since {started}"),
            None => Ok(()),
        }
    }
}

#[cfg(unix)]
fn host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(target_os = "linux")]
fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(not(target_os = "linux"))]
fn boot_id() -> String {
    String::new()
}

/// The start of the process in ticks since the boot, and the boot in seconds since the epoch.
#[cfg(target_os = "linux")]
fn started() -> Option<Timestamp> {
    let process = std::fs::read_to_string("/proc/self/stat").ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    // The name of the program stands in brackets and may hold anything; the start is field 22, the
    // twentieth behind it.
    let (_, fields) = process.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let booted = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    let booted: u64 = booted.trim().parse().ok()?;
    let since = ticks.checked_div(rustix::param::clock_ticks_per_second())?;
    Timestamp::new(i64::try_from(booted.checked_add(since)?).ok()?, 0).ok()
}

#[cfg(not(target_os = "linux"))]
fn started() -> Option<Timestamp> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_told() {
        let holder = Holder::this_process();
        assert_eq!(holder.pid, std::process::id());
        assert!(holder.is_this_process() && !Holder::simulated(holder.pid).is_this_process());
        if cfg!(target_os = "linux") {
            assert!(!holder.host.is_empty() && holder.boot_id.len() == 36);
            let age = Timestamp::now().secs() - holder.started.unwrap().secs();
            assert!((-2..24 * 3600).contains(&age), "started {age} s ago");
        }
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let mut holder = Holder::simulated(7);
        let text = "process 7 on host simulated since 1970-01-01T00:00:00Z";
        assert_eq!(holder.to_string(), text);
        holder.host.clear();
        holder.started = None;
        assert_eq!(holder.to_string(), "process 7");
    }
}
