package handlers

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
)

func FuzzDecodeBody(f *testing.F) {
	for _, seed := range []string{`{"metadata":{"name":"a"}}`, "metadata:\n  name: a\n", "k8s\x00\x0a\x00", `{"kind":"Pod","apiVersion":"v1"}`, "a: &a [*a]", ""} {
		for format := range byte(3) {
			f.Add([]byte(seed), format)
		}
	}
	types := []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	f.Fuzz(func(t *testing.T, body []byte, format byte) {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", types[int(format)%len(types)])
		kind := corev1.SchemeGroupVersion.WithKind("Pod")
		obj, err := decodeBody(r, "Strict", kind, &corev1.Pod{})
		if err == nil {
			if _, ok := obj.(*corev1.Pod); !ok {
				t.Errorf("decoded a %T", obj)
			}
			return
		}
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code < 400 || status.Status().Code > 499 {
			t.Errorf("the error is not the client's: %v", err)
		}
	})
}

func TestTableIsWhatTheEncoderMakes(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	rows := []metav1.TableRow{
		{Cells: []any{"a<b", int64(1), nil, true}, Object: runtime.RawExtension{Raw: []byte(`{"kind":"x"}`)}},
		{Cells: []any{"b", table.Since(metav1.NewTime(now.Add(-90 * time.Minute)))}, Conditions: []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue}}},
		{Cells: []any{"odd \x00 text \x001", "4 (" + table.Since(metav1.NewTime(now.Add(-5*time.Second))) + " ago)"}},
	}
	head := metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "5"},
		ColumnDefinitions: defaultTable().Columns, Rows: []metav1.TableRow{},
	}
	for count := range len(rows) + 1 {
		document, plain := tableDocument{head: head}, head
		for _, row := range rows[:count] {
			printed, err := printedRow(row)
			if err != nil {
				t.Fatal(err)
			}
			document.rows = append(document.rows, tableRow{printed, row.Object.Raw})
			row.Cells = table.Resolve(row.Cells, now)
			plain.Rows = append(plain.Rows, row)
		}
		want, err := response.JSON(plain)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := document.json(now)
		if err != nil || string(join(parts)) != string(want) {
			t.Errorf("got  %s\nwant %s (%v)", join(parts), want, err)
		}
	}
	if got := table.Resolve(rows[2].Cells, now)[1]; got != "4 (5s ago)" {
		t.Errorf("an age within a cell reads %q", got)
	}
}

func FuzzDecodeContinue(f *testing.F) {
	f.Add(continuation{Revision: 5, After: "default/a"}.encode())
	f.Add("nonsense")
	f.Add("eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi94In0")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := decodeContinue(text)
		if err != nil {
			return
		}
		if c.Revision == 0 || c.After == "" || strings.Contains(c.After, "\x00") || path.Clean("/"+c.After) != "/"+c.After {
			t.Errorf("accepted %q as %+v", text, c)
		}
		again, err := decodeContinue(c.encode())
		if err != nil || again != c {
			t.Errorf("%+v does not survive its encoding: %+v, %v", c, again, err)
		}
	})
}

func FuzzRawOf(f *testing.F) {
	f.Add([]byte("k8s\x00\x0a\x02\x0a\x00\x12\x03abc\x1a\x00\x22\x00"))
	f.Add([]byte("k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if raw, err := rawOf(data); err == nil && len(raw) > len(data) {
			t.Errorf("%d bytes out of %d", len(raw), len(data))
		}
	})
}
