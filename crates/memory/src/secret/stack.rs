//! What calculations leave on the stack, and in the registers that they calculate with.

use std::hint::black_box;

/// What `work` comes to. Then `BYTES` of the stack where it worked are overwritten: what it held there of passwords and keys is gone, if
/// it went no deeper. So are the vector registers, on x86-64, in which ciphers have keys: a core dump has the registers of each thread, and
/// whatever is called next may put them on the stack. Costs a memory fill of `BYTES`.
#[inline(never)]
pub fn wiped_stack<const BYTES: usize, T>(work: impl FnOnce() -> T) -> T {
    let done = apart(work);
    wipe::<BYTES>();
    wipe_registers();
    done
}

/// A frame of its own, below which `work` has its own.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Its frame lies where that of `apart` lay.
#[inline(never)]
fn wipe<const BYTES: usize>() {
    let mut area = [0_u8; BYTES];
    // Other code may look at it, as far as the compiler knows.
    black_box(&mut area);
}

/// Clears the vector registers that the processor has.
#[cfg(target_arch = "x86_64")]
fn wipe_registers() {
    use std::arch::asm;
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has the instruction, which changes nothing but registers that are said to change.
        unsafe { asm!("vzeroall", clobber_abi("sysv64"), options(nomem, nostack, preserves_flags)) };
    } else {
        // SAFETY: likewise.
        unsafe {
            asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "xorps xmm\\n, xmm\\n",
                ".endr",
                clobber_abi("sysv64"),
                options(nomem, nostack, preserves_flags)
            );
        }
    }
    if std::is_x86_feature_detected!("avx512f") {
        // SAFETY: likewise.
        unsafe {
            asm!(
                ".irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vpxord zmm\\n, zmm\\n, zmm\\n",
                ".endr",
                clobber_abi("sysv64"),
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

/// Which registers there are is not known here.
#[cfg(not(target_arch = "x86_64"))]
fn wipe_registers() {}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: u64 = 0x5ec2_e75e_c2e7_5ec2;

    /// How often the mark is on the stack of this process.
    fn marks() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let here = (&raw const maps) as usize;
        let ranges = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
        let ranges = ranges.map(|(start, end)| [start, end].map(|at| usize::from_str_radix(at, 16).unwrap()));
        let [start, end] = ranges.into_iter().find(|[start, end]| (*start..*end).contains(&here)).unwrap();
        let mut bytes = vec![0; end - start];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start as u64).unwrap();
        bytes.windows(8).filter(|window| *window == MARK.to_le_bytes()).count()
    }

    #[inline(never)]
    fn leave_marks() -> u64 {
        let area = black_box([black_box(!MARK) ^ black_box(u64::MAX); 1000]);
        area.iter().fold(0, |sum, mark| sum.wrapping_add(*mark))
    }

    #[test]
    fn nothing_stays_on_the_stack() {
        wiped_stack::<{ 32 << 10 }, _>(leave_marks);
        let wiped = marks();
        leave_marks();
        let left = marks();
        assert!(left >= 100, "the test must be able to see marks: {left}");
        assert!(wiped < 10, "{wiped}");
    }

    /// A key was found on a stack: a register had kept it, and a function had put all registers there.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn nothing_stays_in_the_registers() {
        use std::arch::asm;
        let fill = || {
            // SAFETY: the registers are said to change.
            unsafe {
                asm!(
                    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                    "movq xmm\\n, {mark}",
                    ".endr",
                    mark = in(reg) MARK,
                    clobber_abi("sysv64"),
                );
            }
        };
        let marks = || {
            let mut registers = [0_u64; 32];
            // SAFETY: there is room for 16 registers of 16 bytes.
            unsafe {
                asm!(
                    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                    "movups [{area} + 16 * \\n], xmm\\n",
                    ".endr",
                    area = in(reg) registers.as_mut_ptr(),
                );
            }
            registers.into_iter().filter(|part| *part == MARK).count()
        };
        wiped_stack::<4096, _>(fill);
        let wiped = marks();
        fill();
        let left = marks();
        assert!(left > 4, "the test must be able to see marks: {left}");
        assert_eq!(wiped, 0);
    }
}
