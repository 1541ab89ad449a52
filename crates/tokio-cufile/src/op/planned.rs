//! What the planner is asked: a request's place and limits, by a file's route.

use crate::engine::Shared;
use crate::memory::Region;
use crate::os;
use crate::plan::route::FileRoute;
use crate::plan::{self, DirectAlignment, Kind, Place};

/// cuFile takes every address and offset.
const ANY: DirectAlignment = DirectAlignment {
    memory: 1,
    offset: 1,
};

/// All of `memory` in one range of the file. `smallest` is the shortest range that the operation
/// moves, by which it goes by cuFile or does not.
pub(super) fn request(
    engine: &Shared,
    (kind, file_offset): (Kind, u64),
    memory: Region,
    route: &FileRoute,
    smallest: usize,
) -> plan::Request {
    let on_device = matches!(memory, Region::Device(_));
    let by_cufile = route
        .cufile
        .as_ref()
        .is_some_and(|cufile| cufile.takes(on_device, smallest));
    let (place, direct, cached) = if by_cufile {
        let place = Place::Cufile { on_device };
        (place, Some(route.direct.unwrap_or(ANY)), false)
    } else {
        (memory.place(), route.direct, route.cached)
    };
    plan::Request {
        kind,
        file_offset,
        len: memory.len() as u64,
        place,
        direct,
        cached,
        task_size: engine.config.task_size,
        slot_size: engine.config.bounce_buffer_size,
        page_size: os::page_size(),
    }
}

/// All of a device's `memory` by one call of cuFile's.
pub(super) fn in_one_piece(kind: Kind, file_offset: u64, memory: Region) -> plan::Request {
    plan::Request {
        kind,
        file_offset,
        len: memory.len() as u64,
        place: Place::Cufile { on_device: true },
        direct: Some(ANY),
        cached: false,
        task_size: usize::try_from(plan::IO_LEN_MAX).unwrap_or(usize::MAX),
        slot_size: rustix::param::page_size(),
        page_size: os::page_size(),
    }
}
