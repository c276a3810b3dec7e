//! Packets: the frames of requests and replies.

use std::io;

use bytes::{Buf, BytesMut};

/// A packet of this length has a second part. No statement of this client and no row of a reply is so long.
pub(crate) const SPLIT: usize = 0xff_ffff;

/// Adds a request to `out`. Each begins with the number 0.
pub(crate) fn frame(out: &mut BytesMut, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("no request is that long");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Takes a packet, if all of it is there.
pub(crate) fn take_packet(input: &mut BytesMut) -> io::Result<Option<BytesMut>> {
    let Some(&[a, b, c, _]) = input.first_chunk() else { return Ok(None) };
    let length = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
    if length == SPLIT {
        return Err(unexpected());
    }
    if input.len() < 4 + length {
        return Ok(None);
    }
    input.advance(4);
    Ok(Some(input.split_to(length)))
}

pub(crate) fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an unexpected packet")
}
