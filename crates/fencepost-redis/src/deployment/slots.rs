//! Which slot of a cluster a key is in: CRC16 of what is between the first braces, if anything is.

/// How many slots a cluster has.
pub(crate) const SLOTS: usize = 16_384;

pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    let bit = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let crc = tag.unwrap_or(key).iter().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(*byte) << 8, bit));
    crc % SLOTS as u16
}

#[cfg(test)]
mod tests {
    use super::slot;

    /// The first is the check value of the specification, the rest are what CLUSTER KEYSLOT answers.
    #[test]
    fn slots_are_those_of_redis() {
        for (key, expected) in
            [("123456789", 0x31c3), ("foo", 12182), ("{foo}bar", 12182), ("a{foo}{bar}", 12182), ("", 0)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        // No tag: empty, or never closed.
        assert_ne!(slot(b"{}foo"), slot(b"foo"));
        assert_ne!(slot(b"{foo"), slot(b"foo"));
    }
}
