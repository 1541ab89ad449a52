//! Failure: a census is taken for whole or for idle that is not, and hides a lost permit from every
//! test that asks it.
//! Mechanism: the sums and the conditions themselves.
//! Method: censuses that are wrong in one place each.

use tokio_cufile_completion::{Account, Census};

fn account() -> Account {
    Account {
        capacity: 10,
        free: 4,
        reserved: 3,
        issued: 2,
        quarantined: 1,
    }
}

fn census() -> Census {
    Census {
        bytes: account(),
        parts: account(),
        slots: account(),
        small_slots: account(),
        workers: account(),
        ..Census::default()
    }
}

#[test]
fn an_account_adds_up_only_with_every_permit_in_one_standing() {
    assert!(account().is_conserved());
    let lost: [fn(&mut Account); 5] = [
        |account| account.capacity += 1,
        |account| account.free -= 1,
        |account| account.reserved -= 1,
        |account| account.issued += 1,
        |account| account.quarantined += 1,
    ];
    for lose in lost {
        let mut account = account();
        lose(&mut account);
        assert!(!account.is_conserved(), "{account:?}");
    }
}

#[test]
fn a_census_is_conserved_only_if_all_its_accounts_are() {
    assert!(census().is_conserved());
    let accounts: [fn(&mut Census) -> &mut Account; 5] = [
        |census| &mut census.bytes,
        |census| &mut census.parts,
        |census| &mut census.slots,
        |census| &mut census.small_slots,
        |census| &mut census.workers,
    ];
    for account in accounts {
        let mut census = census();
        account(&mut census).free -= 1;
        assert!(!census.is_conserved(), "{census:?}");
    }
}

#[test]
fn a_census_is_idle_only_with_nothing_live_reserved_or_issued() {
    assert!(Census::default().is_idle());
    let busy: [fn(&mut Census); 3] = [
        |census| census.live = 1,
        |census| census.parts.reserved = 1,
        |census| census.parts.issued = 1,
    ];
    for keep in busy {
        let mut census = Census::default();
        keep(&mut census);
        assert!(!census.is_idle(), "{census:?}");
    }
}
