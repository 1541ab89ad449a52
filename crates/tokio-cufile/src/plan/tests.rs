//! Failure looked for: a byte moved twice, not at all or to the wrong place; a direct request
//! that the kernel refuses; a part above a limit; user memory written beyond the request.
//! Method: random requests against a walk over every byte, and hand-made cases for each rule.

use proptest::prelude::*;

use super::*;

const TASK: usize = 64 << 10;
const PAGE_SIZE: u64 = 4096;

fn aligned_512() -> DirectAlignment {
    DirectAlignment {
        memory: 512,
        offset: 512,
    }
}

fn request(kind: Kind, file_offset: u64, len: u64) -> Request {
    Request {
        kind,
        file_offset,
        len,
        place: Place::Host(1 << 20),
        direct: Some(aligned_512()),
        cached: false,
        task_size: TASK,
        slot_size: TASK,
        page_size: PAGE_SIZE,
    }
}

fn parts(request: Request) -> Vec<Part> {
    Plan::new(request).expect("the request is valid").collect()
}

fn part(request: Request, start: u64, end: u64, lane: Lane) -> Part {
    Part {
        buf_offset: start - request.file_offset,
        file_offset: start,
        len: end - start,
        lane,
    }
}

#[test]
fn an_empty_request_has_no_part() {
    let plan = Plan::new(request(Kind::Read, 17, 0)).expect("zero length is valid");
    assert_eq!(plan.parts_total(), 0);
    assert_eq!(plan.count(), 0);
}

#[test]
fn a_request_beyond_the_largest_offset_is_refused() {
    for (offset, len) in [(u64::MAX, 1), (u64::MAX, 0), (OFFSET_MAX, 1), (1, u64::MAX)] {
        let refused = Plan::new(request(Kind::Read, offset, len)).map(|plan| plan.count());
        assert_eq!(
            refused,
            Err(PlanError::RangeTooLarge),
            "offset {offset}, length {len}"
        );
    }
}

#[test]
fn a_limit_that_cannot_hold_one_aligned_unit_is_refused() {
    let valid = request(Kind::Read, 0, 1);
    let plan = |request| Plan::new(request).map(|plan| plan.count());
    assert_eq!(
        plan(Request {
            task_size: 0,
            ..valid
        }),
        Err(PlanError::TaskSizeZero)
    );
    assert_eq!(
        plan(Request {
            task_size: 511,
            ..valid
        }),
        Err(PlanError::TaskSizeBelowAlignment {
            task_size: 511,
            alignment: 512
        })
    );
    assert_eq!(
        plan(Request {
            slot_size: 0,
            ..valid
        }),
        Err(PlanError::SlotSizeBelowAlignment {
            slot_size: 0,
            alignment: 512
        })
    );
    let odd = DirectAlignment {
        memory: 512,
        offset: 1000,
    };
    assert_eq!(
        plan(Request {
            direct: Some(odd),
            ..valid
        }),
        Err(PlanError::AlignmentNotPowerOfTwo)
    );
    assert_eq!(
        plan(Request {
            cached: true,
            task_size: 1,
            slot_size: 0,
            ..valid
        }),
        Ok(1)
    );
}

#[test]
fn a_request_of_a_tebibyte_is_counted_and_begun_without_a_list() {
    let mut plan = Plan::new(request(Kind::Read, 0, 1 << 40)).expect("valid");
    assert_eq!(plan.parts_total(), 1 << 24);
    assert_eq!(plan.next().map(|part| part.len), Some(1 << 16));
    assert_eq!(plan.parts_total(), (1 << 24) - 1);
}

#[test]
fn an_aligned_read_goes_in_place_in_parts_of_the_task_size() {
    let request = request(Kind::Read, 4096, 2 * TASK as u64);
    let middle = 4096 + TASK as u64;
    assert_eq!(
        parts(request),
        [
            part(request, 4096, middle, Lane::DirectInPlace),
            part(request, middle, middle + TASK as u64, Lane::DirectInPlace),
        ]
    );
}

#[test]
fn a_read_whose_address_agrees_has_its_middle_in_place_and_its_edges_in_slots() {
    let end = 512 + 2 * TASK as u64 + 7;
    let request = Request {
        place: Place::Host((1 << 20) + 100),
        ..request(Kind::Read, 100, end - 100)
    };
    let parts = parts(request);
    let head = Lane::DirectViaSlot {
        io_offset: 0,
        io_len: 512,
        skip: 100,
    };
    let tail = Lane::DirectViaSlot {
        io_offset: end - 7,
        io_len: 512,
        skip: 0,
    };
    assert_eq!(parts.first(), Some(&part(request, 100, 512, head)));
    assert_eq!(parts.last(), Some(&part(request, end - 7, end, tail)));
    assert_eq!(parts.len(), 4);
    assert!(
        parts[1..3]
            .iter()
            .all(|part| part.lane == Lane::DirectInPlace)
    );
}

#[test]
fn a_small_unaligned_read_takes_one_slot_and_one_system_call() {
    let request = Request {
        place: Place::Host((1 << 20) + 100),
        ..request(Kind::Read, 100, 4096)
    };
    let lane = Lane::DirectViaSlot {
        io_offset: 0,
        io_len: 4608,
        skip: 100,
    };
    assert_eq!(parts(request), [part(request, 100, 4196, lane)]);
}

#[test]
fn a_read_whose_address_disagrees_goes_through_slots_with_a_short_first_part() {
    let request = Request {
        place: Place::Host(1),
        ..request(Kind::Read, 1000, 2 * TASK as u64)
    };
    let cuts: Vec<_> = parts(request).iter().map(|part| part.file_offset).collect();
    assert_eq!(cuts, [1000, 512 + TASK as u64, 512 + 2 * TASK as u64]);
}

#[test]
fn a_slot_smaller_than_the_task_size_limits_the_parts_that_use_it() {
    let request = Request {
        place: Place::Host(1),
        slot_size: 8192,
        ..request(Kind::Read, 0, TASK as u64)
    };
    assert!(parts(request).iter().all(|part| part.len == 8192));
}

#[test]
fn larger_pages_have_longer_edges() {
    let page = 64 << 10;
    let request = Request {
        place: Place::Host(4096),
        page_size: page,
        ..request(Kind::Write, 4096, 2 * page)
    };
    assert_eq!(
        parts(request),
        [
            part(request, 4096, page, Lane::Buffered),
            part(request, page, 2 * page, Lane::DirectInPlace),
            part(request, 2 * page, 2 * page + 4096, Lane::Buffered),
        ]
    );
}

#[test]
fn the_edges_of_a_write_are_buffered_and_cut_at_pages() {
    let request = Request {
        place: Place::Host(4096 + 100),
        ..request(Kind::Write, 100, 3 * 4096)
    };
    assert_eq!(
        parts(request),
        [
            part(request, 100, 4096, Lane::Buffered),
            part(request, 4096, 3 * 4096, Lane::DirectInPlace),
            part(request, 3 * 4096, 3 * 4096 + 100, Lane::Buffered),
        ]
    );
}

#[test]
fn a_write_from_unaligned_memory_is_staged_and_not_padded() {
    let request = Request {
        place: Place::Host(3),
        ..request(Kind::Write, 4096, 8192)
    };
    let lane = Lane::DirectViaSlot {
        io_offset: 4096,
        io_len: 8192,
        skip: 0,
    };
    assert_eq!(parts(request), [part(request, 4096, 12288, lane)]);
}

#[test]
fn a_write_that_fills_no_page_is_one_buffered_part() {
    let request = request(Kind::Write, 4000, 200);
    assert_eq!(parts(request), [part(request, 4000, 4200, Lane::Buffered)]);
}

#[test]
fn a_read_whose_aligned_end_is_beyond_the_largest_offset_is_buffered() {
    let request = request(Kind::Read, OFFSET_MAX - 10, 10);
    assert_eq!(
        parts(request),
        [part(request, OFFSET_MAX - 10, OFFSET_MAX, Lane::Buffered)]
    );
}

#[test]
fn no_part_exceeds_what_one_system_call_moves() {
    let huge = Request {
        task_size: 1 << 40,
        slot_size: 1 << 40,
        ..request(Kind::Read, 0, 1 << 33)
    };
    for request in [
        huge,
        Request {
            place: Place::Host(1),
            ..huge
        },
        Request {
            cached: true,
            ..huge
        },
    ] {
        assert!(parts(request).iter().all(|part| part.len <= IO_LEN_MAX));
    }
}

fn alignments() -> impl Strategy<Value = Option<DirectAlignment>> {
    let power = || (0u32..5).prop_map(|shift| 512u64 << shift);
    prop_oneof![
        1 => Just(None),
        4 => (power(), power())
            .prop_map(|(memory, offset)| Some(DirectAlignment { memory, offset })),
    ]
}

/// Values around multiples of a page, where the edges are, and anything else.
fn near_pages(pages: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..pages, 0u64..3).prop_map(|(page, off)| (page * 4096 + off).saturating_sub(1)),
        (0..pages * 8).prop_map(|sector| sector * 512),
        0..pages * 4096,
    ]
}

prop_compose! {
    fn requests()(
        write in any::<bool>(),
        file_offset in near_pages(40),
        len in near_pages(100),
        address in near_pages(20),
        agree in any::<bool>(),
        on_device in prop::bool::weighted(0.25),
        direct in alignments(),
        cached in prop::bool::weighted(0.1),
        by_cufile in prop::bool::weighted(0.2),
        task_size in 8192usize..200_000,
        slot_size in 8192usize..200_000,
        page_size in prop::sample::select(vec![PAGE_SIZE, 64 << 10]),
    ) -> Request {
        // Half of them with an address that agrees with the offset, or in-place parts are rare.
        let address = if agree { file_offset + (address & !8191) } else { address };
        Request {
            kind: if write { Kind::Write } else { Kind::Read },
            file_offset,
            len,
            place: if by_cufile && direct.is_some() && !cached {
                Place::Cufile { on_device }
            } else if on_device {
                Place::Device
            } else {
                Place::Host(usize::try_from(address).expect("small"))
            },
            direct,
            cached,
            task_size,
            slot_size,
            page_size,
        }
    }
}

/// The lane of one byte by the rules as written, without any cutting.
fn may_be_direct(request: &Request, byte: u64) -> bool {
    let Some(DirectAlignment { memory, offset }) = request.direct.filter(|_| !request.cached)
    else {
        return false;
    };
    let edge = memory.max(offset).max(request.page_size);
    let page = byte / edge * edge;
    let fills = request.file_offset <= page && page + edge <= request.file_offset + request.len;
    request.kind == Kind::Read || fills
}

fn address_of(request: &Request) -> Option<u64> {
    match request.place {
        Place::Host(address) => Some(address as u64),
        Place::Device | Place::Cufile { .. } => None,
    }
}

/// Also by cuFile, which leaves to the page cache what a direct write leaves.
fn is_direct(part: &Part) -> bool {
    matches!(
        part.lane,
        Lane::DirectInPlace | Lane::DirectViaSlot { .. } | Lane::Cufile
    )
}

fn check_direct(request: &Request, part: &Part) {
    let DirectAlignment { memory, offset } = request.direct.expect("a direct part");
    match part.lane {
        Lane::Buffered | Lane::BufferedViaSlot => {}
        Lane::Cufile => assert!(matches!(request.place, Place::Cufile { .. }), "{part:?}"),
        Lane::DirectInPlace => {
            let address = address_of(request).expect("in place in the host") + part.buf_offset;
            assert_eq!(part.file_offset % offset, 0, "{part:?}");
            assert_eq!(part.len % offset, 0, "{part:?}");
            assert_eq!(address % memory, 0, "{part:?}");
        }
        Lane::DirectViaSlot {
            io_offset,
            io_len,
            skip,
        } => {
            assert_eq!(io_offset % offset, 0, "{part:?}");
            assert_eq!(io_len % offset, 0, "{part:?}");
            assert!(io_len <= request.slot_size as u64, "{part:?}");
            assert!(io_len <= request.task_size as u64, "{part:?}");
            assert_eq!(io_offset + skip, part.file_offset, "{part:?}");
            assert!(skip + part.len <= io_len, "{part:?}");
            if request.kind == Kind::Write {
                assert_eq!((skip, io_len), (0, part.len), "{part:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn parts_cover_the_request_once_in_order_within_every_limit(request in requests()) {
        let plan = Plan::new(request).expect("the strategy makes valid requests");
        let (total, outline) = (plan.parts_total(), plan.outline());
        let by_lane = outline.in_place + outline.by_cufile + outline.via_slot + outline.buffered;
        prop_assert_eq!(by_lane, request.len);

        let (mut next, mut count) = (request.file_offset, 0);
        let mut seen = Outline::default();
        for part in plan {
            prop_assert!(part.len > 0);
            prop_assert_eq!(part.file_offset, next, "a gap or an overlap");
            prop_assert_eq!(part.buf_offset, next - request.file_offset);
            prop_assert!(part.len <= request.task_size as u64);
            if is_direct(&part) {
                check_direct(&request, &part);
            }
            let on_device = request.place.is_on_device();
            let is_in_slot = part.lane.slot_len(part.len).is_some();
            prop_assert!(is_in_slot || part.lane == Lane::Cufile || !on_device, "out of reach: {part:?}");
            prop_assert!(part.lane != Lane::BufferedViaSlot || on_device);
            match part.lane {
                Lane::DirectInPlace => seen.in_place += part.len,
                Lane::Cufile => seen.by_cufile += part.len,
                Lane::Buffered => seen.buffered += part.len,
                Lane::BufferedViaSlot => {
                    prop_assert!(part.len <= request.slot_size as u64);
                    seen.buffered += part.len;
                }
                Lane::DirectViaSlot { io_len, .. } => {
                    seen.via_slot += part.len;
                    seen.slot_io_len_max = seen.slot_io_len_max.max(io_len);
                }
            }
            next += part.len;
            count += 1;
        }
        prop_assert_eq!(next, request.file_offset + request.len);
        prop_assert_eq!(count, total);
        // The longest window may be stated longer than it is, never shorter.
        prop_assert!(outline.slot_io_len_max >= seen.slot_io_len_max);
        seen.slot_io_len_max = outline.slot_io_len_max;
        seen.on_device = request.place.is_on_device();
        prop_assert_eq!(seen, outline);
    }

    #[test]
    fn every_byte_goes_direct_exactly_where_the_rules_say(request in requests()) {
        for part in Plan::new(request).expect("the strategy makes valid requests") {
            let direct = is_direct(&part);
            for byte in part.file_offset..part.file_offset + part.len {
                prop_assert_eq!(direct, may_be_direct(&request, byte), "byte {} of {:?}", byte, part);
            }
        }
    }

    #[test]
    fn a_large_read_that_can_go_in_place_mostly_does(request in requests()) {
        let Some(alignment) = request.direct else { return Ok(()) };
        let Some(address) = address_of(&request) else { return Ok(()) };
        let agree = address
            .abs_diff(request.file_offset)
            .is_multiple_of(alignment.memory.min(alignment.offset));
        let unit = alignment.memory.max(alignment.offset);
        if !agree || request.cached || request.kind == Kind::Write {
            return Ok(());
        }
        let in_place: u64 = Plan::new(request)
            .expect("the strategy makes valid requests")
            .filter(|part| part.lane == Lane::DirectInPlace)
            .map(|part| part.len)
            .sum();
        prop_assert!(in_place + 2 * unit + IN_PLACE_LEN_MIN >= request.len);
    }
}
