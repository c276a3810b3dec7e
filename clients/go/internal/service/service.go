// Package service starts lock services for tests.
package service

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Start starts a service that ends with the test, and returns its address. Without the environment variable FENCEPOST, which names the
// program, the test is skipped.
func Start(t testing.TB) string {
	t.Helper()
	program := os.Getenv("FENCEPOST")
	if program == "" {
		t.Skip("FENCEPOST does not name the program fencepost")
	}
	command := exec.Command(program, "serve", "-b", "sqlite:"+filepath.Join(t.TempDir(), "locks.db"), "--listen", "127.0.0.1:0")
	said, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if url, ok := strings.CutPrefix(lines.Text(), "the page: "); ok {
			return strings.TrimSuffix(url, "/")
		}
	}
	t.Fatal("the service did not start")
	return ""
}
