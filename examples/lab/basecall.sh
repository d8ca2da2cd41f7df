#!/bin/sh
# One attempt of one sample. HelixQueue sets the variables; see docs/guides/lab.md.
set -eu
echo "$HELIX_IDENTITY attempt $HELIX_ATTEMPT" >> attempts.log
sleep 0.08 # stands for the basecaller
printf '{"reads": %d}\n' "$(wc -c < "$HELIX_PAYLOAD")" > "$HELIX_RESULT"
