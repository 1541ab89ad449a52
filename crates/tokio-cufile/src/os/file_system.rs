//! The name of a file's file system.

use std::os::fd::BorrowedFd;

/// Names as `/proc/mounts` has them, by the numbers of `linux/magic.h` or of the file system's own
/// source. ext2 and ext3 have ext4's.
const NAMES: [(u32, &str); 17] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlay"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x6573_5546, "fuse"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0x00c3_6400, "ceph"),
    (0x0bd0_0bd0, "lustre"),
    (0x1983_0326, "beegfs"),
    (0x4750_4653, "gpfs"),
    (0x1803_1977, "wekafs"),
    (0xaad7_aaea, "panfs"),
];

/// `None` for one that is not in the table, or that cannot be asked.
pub(crate) fn name_of(file: BorrowedFd<'_>) -> Option<&'static str> {
    let stat = rustix::fs::fstatfs(file).ok()?;
    // Some of the numbers are negative in the kernel's signed field.
    let magic = u64::from_ne_bytes(stat.f_type.to_ne_bytes()) & 0xffff_ffff;
    NAMES
        .iter()
        .find(|(number, _)| u64::from(*number) == magic)
        .map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn it_is_the_name_in_the_list_of_mounts() {
        // The process file system is in nobody's table, and what tests are built on is.
        let proc = File::open("/proc/self/mounts").unwrap();
        assert_eq!(name_of(proc.as_fd()), None);
        let shm = File::open("/dev/shm").unwrap();
        assert_eq!(name_of(shm.as_fd()), Some("tmpfs"));
    }
}
