//! Tests of the journal from the inside: the decision, row by row. Tests over the simulated disk
//! stand in `tests/`.

mod decision;
mod hostile;
mod sweep;
