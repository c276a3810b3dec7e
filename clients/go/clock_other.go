//go:build !linux

package fencepost

import "time"

// moment is a reading of the monotonic clock, which may stop while the machine is suspended, and of the wall clock, which may be set.
type moment time.Time

func now() moment { return moment(time.Now()) }

// elapsed returns the longer of both times, so that a lock is lost by the earlier verdict.
func (m moment) elapsed() time.Duration {
	then, now := time.Time(m), time.Now()
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}
