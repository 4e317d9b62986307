//! The whole disk: files and directories, the names that lead to them, and who has them open.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use super::fault::Faults;
use super::names::{DirBody, missing};
use super::node::FileBody;
use super::power::Choose;
use super::trace::{Op, Trace};

pub(super) const ROOT: u64 = 0;

#[derive(Debug, Clone)]
pub(super) enum Body {
    File(FileBody),
    Dir(DirBody),
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    /// The number that callers see. It is given again, lowest first, as soon as no visible name
    /// and no handle leads to the node, as real file systems do.
    pub(super) number: u64,
    /// Names in the page cache.
    pub(super) visible: usize,
    /// Names on the medium and names in unsynced changes.
    pub(super) stored: usize,
    pub(super) open: usize,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) struct Handle {
    pub(super) process: u64,
    pub(super) node: u64,
}

#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) crashed: bool,
    pub(super) calls_left: Option<u64>,
}

#[derive(Default)]
pub(super) struct Disk {
    // Node ids are never given twice, unlike the numbers that callers see.
    nodes: BTreeMap<u64, Node>,
    next_node: u64,
    free_numbers: BTreeSet<u64>,
    next_number: u64,
    pub(super) handles: BTreeMap<u64, Handle>,
    next_handle: u64,
    /// The handle that holds the lock of a node.
    pub(super) locks: BTreeMap<u64, u64>,
    pub(super) processes: BTreeMap<u64, Process>,
    next_process: u64,
    pub(super) capacity: Option<u64>,
    pub(super) faults: Faults,
    pub(super) trace: Trace,
}

impl Disk {
    pub(super) fn new() -> Self {
        let mut disk = Disk::default();
        let root = disk.add_node(Body::Dir(DirBody::default()));
        disk.count(root, |node| (&mut node.visible, 1));
        disk.count(root, |node| (&mut node.stored, 1));
        disk
    }

    /// The same files and names, with nobody at work on them.
    pub(super) fn copy(&self) -> Self {
        let mut copy = Disk {
            nodes: self.nodes.clone(),
            next_node: self.next_node,
            capacity: self.capacity,
            ..Disk::default()
        };
        copy.trace.off = self.trace.off;
        for node in copy.nodes.values_mut() {
            node.forget_failures();
        }
        copy.recount();
        copy
    }

    // ---- nodes

    pub(super) fn node(&self, id: u64) -> io::Result<&Node> {
        self.nodes.get(&id).ok_or_else(missing)
    }

    pub(super) fn file(&self, id: u64) -> io::Result<&FileBody> {
        match &self.node(id)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn file_mut(&mut self, id: u64) -> io::Result<&mut FileBody> {
        match self.nodes.get_mut(&id).map(|node| &mut node.body) {
            Some(Body::File(file)) => Ok(file),
            Some(Body::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(missing()),
        }
    }

    pub(super) fn dir(&self, id: u64) -> io::Result<&DirBody> {
        match &self.node(id)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn dir_mut(&mut self, id: u64) -> io::Result<&mut DirBody> {
        match self.nodes.get_mut(&id).map(|node| &mut node.body) {
            Some(Body::Dir(dir)) => Ok(dir),
            Some(Body::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(missing()),
        }
    }

    pub(super) fn is_dir(&self, id: u64) -> bool {
        self.dir(id).is_ok()
    }

    #[cfg(test)]
    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of all files that have a visible name or are open.
    pub(super) fn used(&self) -> u64 {
        let live = self
            .nodes
            .values()
            .filter(|node| node.visible + node.open > 0);
        live.map(|node| match &node.body {
            Body::File(file) => file.cache.len(),
            Body::Dir(_) => 0,
        })
        .fold(0, u64::saturating_add)
    }

    /// Adds a node without any name; it goes as soon as something is counted off it.
    pub(super) fn add_node(&mut self, body: Body) -> u64 {
        let number = self.take_number();
        let id = self.next_node;
        self.next_node += 1;
        self.nodes.insert(
            id,
            Node {
                number,
                visible: 0,
                stored: 0,
                open: 0,
                body,
            },
        );
        id
    }

    fn take_number(&mut self) -> u64 {
        self.free_numbers.pop_first().unwrap_or_else(|| {
            self.next_number += 1;
            self.next_number
        })
    }

    /// Changes one counter of a node, and lets go of what nothing leads to any more.
    pub(super) fn count(&mut self, id: u64, change: impl Fn(&mut Node) -> (&mut usize, isize)) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let (counter, by) = change(node);
        *counter = counter.saturating_add_signed(by);
        if by < 0 {
            self.reap(id);
        }
    }

    fn reap(&mut self, id: u64) {
        let mut work = vec![id];
        while let Some(id) = work.pop() {
            let Some(node) = self.nodes.get_mut(&id) else {
                continue;
            };
            if node.visible + node.open > 0 {
                continue;
            }
            if node.number != 0 {
                self.free_numbers.insert(std::mem::take(&mut node.number));
            }
            if node.stored > 0 {
                continue;
            }
            let Some(Node {
                body: Body::Dir(dir),
                ..
            }) = self.nodes.remove(&id)
            else {
                continue;
            };
            for child in dir.stored_names() {
                if let Some(node) = self.nodes.get_mut(&child) {
                    node.stored = node.stored.saturating_sub(1);
                    work.push(child);
                }
            }
        }
    }

    // ---- handles and processes

    pub(super) fn add_process(&mut self) -> u64 {
        self.next_process += 1;
        self.processes.insert(self.next_process, Process::default());
        self.next_process
    }

    pub(super) fn end_process(&mut self, process: u64) {
        self.processes.remove(&process);
        let mine = self
            .handles
            .iter()
            .filter(|(_, handle)| handle.process == process);
        for id in mine.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id);
        }
    }

    pub(super) fn lives(&self, process: u64) -> bool {
        self.processes
            .get(&process)
            .is_some_and(|process| !process.crashed)
    }

    /// Whether the process may make this call, counted towards its crash.
    pub(super) fn admits(&mut self, process: u64, op: &Op) -> bool {
        let Some(process) = self
            .processes
            .get_mut(&process)
            .filter(|process| !process.crashed)
        else {
            return false;
        };
        if op.changes_disk()
            && let Some(left) = &mut process.calls_left
        {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => process.crashed = true,
            }
        }
        !process.crashed
    }

    pub(super) fn crash(&mut self, process: u64) {
        if let Some(process) = self.processes.get_mut(&process) {
            process.crashed = true;
        }
    }

    pub(super) fn add_handle(&mut self, process: u64, node: u64) -> u64 {
        self.next_handle += 1;
        self.handles
            .insert(self.next_handle, Handle { process, node });
        self.count(node, |node| (&mut node.open, 1));
        self.next_handle
    }

    pub(super) fn close(&mut self, id: u64) {
        let Some(Handle { node, .. }) = self.handles.remove(&id) else {
            return;
        };
        if self.locks.get(&node) == Some(&id) {
            self.locks.remove(&node);
        }
        match self.nodes.get_mut(&node).map(|node| &mut node.body) {
            Some(Body::File(file)) => file.forget_handle(id),
            Some(Body::Dir(dir)) => {
                dir.unreported.remove(&id);
            }
            None => {}
        }
        self.count(node, |node| (&mut node.open, -1));
    }

    pub(super) fn handles_of(&self, node: u64) -> Vec<u64> {
        let on = self
            .handles
            .iter()
            .filter(|(_, handle)| handle.node == node);
        on.map(|(id, _)| *id).collect()
    }

    // ---- power

    /// Ends every process and leaves what the choices say. Directories decide before what is in
    /// them, files that lost their last name do not come up.
    pub(super) fn lose_power(&mut self, choose: &mut Choose<'_>) {
        self.processes.clear();
        self.handles.clear();
        self.locks.clear();
        let mut work = vec![(ROOT, PathBuf::from("/"))];
        let mut seen = BTreeSet::new();
        while let Some((id, path)) = work.pop() {
            if !seen.insert(id) {
                continue;
            }
            // Only missing nodes fail here, and there is nothing to lose in those.
            let _ = self.lose_names(id, &path, choose);
            match self.nodes.get_mut(&id).map(|node| &mut node.body) {
                Some(Body::File(file)) => file.restart(&path, choose),
                Some(Body::Dir(dir)) => {
                    dir.cache = dir.disk.clone();
                    dir.unreported.clear();
                    work.extend(
                        dir.disk
                            .iter()
                            .rev()
                            .map(|(name, id)| (*id, path.join(&**name))),
                    );
                }
                None => {}
            }
        }
        self.nodes.retain(|id, _| seen.contains(id));
        self.recount();
    }

    /// Counts all names anew, drops what none leads to and gives numbers where they are wanting.
    fn recount(&mut self) {
        let mut visible = vec![ROOT];
        let mut stored = vec![ROOT];
        for node in self.nodes.values_mut() {
            (node.visible, node.stored, node.open) = (0, 0, 0);
            if let Body::Dir(dir) = &node.body {
                visible.extend(dir.cache.values());
                stored.extend(dir.stored_names());
            }
        }
        for handle in self.handles.values() {
            if let Some(node) = self.nodes.get_mut(&handle.node) {
                node.open += 1;
            }
        }
        for id in visible {
            self.count(id, |node| (&mut node.visible, 1));
        }
        for id in stored {
            self.count(id, |node| (&mut node.stored, 1));
        }
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.reap(id);
        }
        self.number_anew();
    }

    fn number_anew(&mut self) {
        let mut taken = BTreeSet::from([0]);
        let mut wanting = Vec::new();
        for (id, node) in &mut self.nodes {
            if node.visible + node.open == 0 {
                node.number = 0;
            } else if !taken.insert(node.number) {
                wanting.push(*id);
            }
        }
        self.next_number = taken.last().copied().unwrap_or(0);
        self.free_numbers = (1..self.next_number)
            .filter(|number| !taken.contains(number))
            .collect();
        for id in wanting {
            let number = self.take_number();
            if let Some(node) = self.nodes.get_mut(&id) {
                node.number = number;
            }
        }
    }
}

impl Node {
    fn forget_failures(&mut self) {
        match &mut self.body {
            Body::File(file) => file.forget_failures(),
            Body::Dir(dir) => dir.unreported.clear(),
        }
    }
}
