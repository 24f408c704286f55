"""What has been measured on a path, one module for each tool."""
