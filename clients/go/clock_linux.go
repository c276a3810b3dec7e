package fencepost

import (
	"syscall"
	"time"
	"unsafe"
)

// moment is a reading of CLOCK_BOOTTIME, which also runs while the machine is suspended. The clock of package time does not.
type moment time.Duration

func now() moment {
	const boottime = 7
	var read syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&read)), 0)
	if errno != 0 {
		panic("fencepost: the system has no CLOCK_BOOTTIME: " + errno.Error())
	}
	return moment(read.Nano())
}

func (m moment) elapsed() time.Duration { return time.Duration(now() - m) }
