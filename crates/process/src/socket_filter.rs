//! The filter of system calls in a sandbox: the kinds of sockets that a command may create.
//!
//! A network namespace does not cover every kind of socket: those of virtual machines (`AF_VSOCK`) reach the host. Nor
//! does it cover the keys that the kernel keeps for a user. The filter refuses both, and the ways around it: system
//! calls of other architectures, and `io_uring`, which creates sockets without the system call.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};

/// The number of the architecture in the kernel's description of a system call.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// System calls from this number on belong to a second interface of x86-64.
const SECOND_INTERFACE: u32 = 0x4000_0000;

/// The places of the number, the architecture and the first argument in the kernel's description.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const FIRST_ARGUMENT_AT: u32 = 16;

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const REFUSE_WITH: u32 = 0x0005_0000;

/// One instruction of the filter.
struct Instruction(u16, u8, u8, u32);

/// Creates a file with a filter that allows sockets of these families, or all if there are none. Children inherit the
/// descriptor. Returns `None` on an architecture without filter.
pub(crate) fn file(families: &[i32]) -> io::Result<Option<OwnedFd>> {
    let Some(program) = program(families) else { return Ok(None) };
    let fd = memfd_create("sprag-filter", MemfdFlags::empty())?;
    let mut rest = &program[..];
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest))?;
        rest = &rest[written..];
    }
    seek(&fd, SeekFrom::Start(0))?;
    debug_assert!(fd.as_raw_fd() > 2);
    Ok(Some(fd))
}

fn program(families: &[i32]) -> Option<Vec<u8>> {
    let refuse = |error: i32| Instruction(RETURN, 0, 0, REFUSE_WITH | error as u32);
    let refused_calls = [libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl];
    let mut program = vec![
        Instruction(LOAD, 0, 0, ARCHITECTURE_AT),
        Instruction(IF_EQUAL, 1, 0, ARCHITECTURE?),
        refuse(libc::ENOSYS),
        Instruction(LOAD, 0, 0, NUMBER_AT),
        Instruction(IF_AT_LEAST, 0, 1, SECOND_INTERFACE),
        refuse(libc::ENOSYS),
    ];
    for call in refused_calls {
        program.push(Instruction(IF_EQUAL, 0, 1, call as u32));
        program.push(refuse(libc::EPERM));
    }
    if !families.is_empty() {
        program.push(Instruction(IF_EQUAL, 0, 1, libc::SYS_io_uring_setup as u32));
        program.push(refuse(libc::ENOSYS));
        program.push(Instruction(IF_EQUAL, 1, 0, libc::SYS_socket as u32));
        program.push(Instruction(RETURN, 0, 0, ALLOW));
        program.push(Instruction(LOAD, 0, 0, FIRST_ARGUMENT_AT));
        for family in families {
            program.push(Instruction(IF_EQUAL, 0, 1, *family as u32));
            program.push(Instruction(RETURN, 0, 0, ALLOW));
        }
        program.push(refuse(libc::EACCES));
    }
    program.push(Instruction(RETURN, 0, 0, ALLOW));
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for Instruction(code, if_true, if_false, value) in program {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([if_true, if_false]);
        bytes.extend(value.to_ne_bytes());
    }
    Some(bytes)
}
