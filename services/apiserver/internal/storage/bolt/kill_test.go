package bolt

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	bbolt "go.etcd.io/bbolt"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// killedStore is set in the process that TestKilledStoreKeepsWhatItAcknowledged
// starts and kills.
const killedStore = "SAMPAN_TEST_KILLED_STORE"

func TestMain(m *testing.M) {
	if path := os.Getenv(killedStore); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeUntilKilled creates and updates keys from several writers and prints what
// was acknowledged.
func writeUntilKilled(path string) error {
	s, err := Open(Options{Path: path})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	started := time.Now().UnixNano()
	for w := range 8 {
		group.Go(func() {
			key := fmt.Sprintf("/own/%d/%d", started, w)
			kv, err := s.Create(context.Background(), storage.Put{Key: key, Value: []byte("0")})
			for i := 1; err == nil; i++ {
				mu.Lock()
				fmt.Println(key, kv.Revision, i-1)
				mu.Unlock()
				kv, err = s.Update(context.Background(), storage.Put{Key: key, Value: []byte(strconv.Itoa(i))}, kv.Revision)
			}
		})
	}
	group.Wait()
	return err
}

func TestKilledStoreKeepsWhatItAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	acknowledged := map[string]storage.KeyValue{}
	for round := range 5 {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), killedStore+"="+path)
		command.Stderr = os.Stderr
		out, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		readAcknowledged(t, out, 300+100*round, func() { _ = command.Process.Kill() }, acknowledged)
		_ = command.Wait()
		assertKept(t, path, acknowledged)
	}
}

// readAcknowledged reads lines, kills after some, and reads on to the end: what
// was printed was acknowledged.
func readAcknowledged(t *testing.T, out io.Reader, kill int, killed func(), into map[string]storage.KeyValue) {
	t.Helper()
	lines := bufio.NewReader(out)
	for n := 0; ; n++ {
		if n == kill {
			killed()
		}
		line, err := lines.ReadString('\n')
		if err != nil { // the last line may be a part of one
			if n < kill {
				t.Fatalf("the store ended after %d writes", n)
			}
			return
		}
		fields := strings.Fields(line)
		revision, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		into[fields[0]] = storage.KeyValue{Revision: revision, Value: []byte(fields[2])}
	}
}

// assertKept opens the store and finds every key at its last acknowledged
// revision or, where a write was in flight, the one after.
func assertKept(t *testing.T, path string, acknowledged map[string]storage.KeyValue) {
	t.Helper()
	s := mustOpen(t, Options{Path: path})
	defer func() { _ = s.Close() }()
	for key, want := range acknowledged {
		got, err := s.Get(t.Context(), key, 0)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		have, _ := strconv.Atoi(string(got.Value))
		last, _ := strconv.Atoi(string(want.Value))
		if got.Revision < want.Revision || have < last || have > last+1 {
			t.Errorf("%s is %d at %d; acknowledged was %d at %d", key, have, got.Revision, last, want.Revision)
		}
		acknowledged[key] = got
	}
	if err := s.db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		return nil
	}); err != nil {
		t.Errorf("the file: %v", err)
	}
}
