# The checksums, signed by a throwaway key.
. "$(dirname "$0")/lib.sh"

ssh-keygen -q -t ed25519 -N '' -C release -f "$work/key"
cp -a "$RELEASE/." "$work/release"
cd "$work/release"
rm -f SHA256SUMS.sig
sha256sum --quiet --check SHA256SUMS
ok "the checksums are those of the files"
ssh-keygen -q -Y sign -f "$work/key" -n fencepost SHA256SUMS
echo "release $(cat "$work/key.pub")" > "$work/signers"
ssh-keygen -q -Y verify -f "$work/signers" -I release -n fencepost -s SHA256SUMS.sig < SHA256SUMS
echo changed >> SHA256SUMS
ssh-keygen -q -Y verify -f "$work/signers" -I release -n fencepost -s SHA256SUMS.sig < SHA256SUMS > /dev/null 2>&1 && fail "a changed list passes"
ok "their signature is verified as the checklist says, and a changed list is refused"
