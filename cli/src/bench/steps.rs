//! The store that is measured: typed commits, each thread in a session of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepwell::content::{AssistantMessage, UserMessage};
use stepwell::store::{Layout, Loop, LoopSpec, SessionSpec, StepDraft, Store, StoreOptions, Turn};

use super::BenchError;
use super::counting::{CountingVfs, Counts};
use super::folder::Folder;
use super::journal::ENOUGH;
use super::measure::{Run, drive};
use crate::args::Sessions;

/// Steps that are committed before the measuring begins, by each: segments have grown then.
const BEFORE: usize = 32;

/// A store on the disk.
#[derive(Debug)]
pub(super) struct Steps {
    store: Store,
    vfs: CountingVfs,
    path: PathBuf,
}

impl Steps {
    pub(super) fn make(
        folder: &Folder,
        layout: Sessions,
        number: usize,
    ) -> Result<Steps, BenchError> {
        let path = folder.join(&format!("store-{number}"));
        let vfs = CountingVfs::default();
        let options = StoreOptions {
            layout: match layout {
                Sessions::Shared => Layout::Shared,
                Sessions::PerSession => Layout::PerSession,
            },
            ..StoreOptions::default()
        };
        let store = Store::on(Arc::new(vfs.clone()), &path, options)?;
        Ok(Steps { store, vfs, path })
    }

    /// As for the journal.
    pub(super) fn is_large(&self) -> bool {
        self.vfs.counts().bytes > ENOUGH
    }

    /// Gives it up, and its space back.
    pub(super) fn remove(self) -> Result<(), BenchError> {
        drop(self.store);
        std::fs::remove_dir_all(&self.path).map_err(BenchError::disk(&self.path))
    }

    /// Threads that commit one step after the other, each stamped, checked, encoded and read back before
    /// it is appended.
    pub(super) fn threads(
        &self,
        writers: usize,
        size: usize,
        duration: Duration,
    ) -> Result<(Run, Counts), BenchError> {
        let mut loops = Vec::with_capacity(writers);
        for _ in 0..writers {
            let session = self.store.create_session(SessionSpec::new())?;
            loops.push(session.create_loop(LoopSpec::new("main"))?);
        }
        let begun = loops
            .iter_mut()
            .map(|looped: &mut Loop| looped.begin_turn(UserMessage::text("go")));
        let mut turns = begun.collect::<Result<Vec<Turn<'_>>, _>>()?;
        let text = "x".repeat(size);
        let step = || StepDraft::new(AssistantMessage::text(text.as_str()));
        for turn in &mut turns {
            for _ in 0..BEFORE {
                drop(turn.commit_step(step())?);
            }
        }
        let works = turns.iter_mut().map(|turn| {
            || {
                drop(turn.commit_step(step())?);
                Ok(())
            }
        });
        let before = self.vfs.counts();
        let run = drive(works.collect(), duration)?;
        let counts = self.vfs.counts().since(before);
        for turn in turns {
            drop(turn.finish()?);
        }
        Ok((run, counts))
    }
}
