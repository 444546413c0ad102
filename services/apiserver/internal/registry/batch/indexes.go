package batch

import (
	"fmt"
	"strconv"
)

func parseIndex(text string) (int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("cannot convert string to integer for index: %q", text)
	}
	return int32(n), nil
}
